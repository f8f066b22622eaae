"""Schedules that repeat a building block."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, equal_stages
from ooodist.planner.pipeline.named.building_blocks import v_half, v_min
from ooodist.planner.pipeline.named.schedules import one_forward_one_backward
from ooodist.planner.pipeline.simulate import peak_bytes, simulate_pipeline


def test_the_first_micro_batches_of_v_min() -> None:
    """Those of the module's drawing."""
    assert [" ".join(map(str, actions)) for actions in v_min(3, 1).actions] == [
        "0F0 5F0 5I0 5W0 0I0 0W0",
        "1F0 4F0 4I0 4W0 1I0 1W0",
        "2F0 3F0 3I0 2I0 3W0 2W0",
    ]


@pytest.mark.parametrize(
    ("make", "ranks", "microbatches", "seconds", "hop", "published", "peak"),
    [
        (v_min, 4, 8, (10, 10, 10), 0, 590, 4),
        (v_min, 4, 32, (10, 10, 10), 0, 2030, 4),
        (v_min, 6, 18, (10, 12, 8), 1, 1574, 6),
        (v_min, 8, 24, (10, 10, 10), 0, 1710, 8),
        (v_half, 4, 8, (10, 10, 10), 0, 530, 6),
        (v_half, 4, 12, (10, 12, 8), 1, 816, 6),
        (v_half, 6, 12, (10, 10, 10), 0, 830, 8),
        (v_half, 6, 18, (10, 12, 8), 1, 1266, 8),
        (v_half, 8, 24, (10, 10, 10), 0, 1610, 10),
    ],
)
def test_as_fast_as_published(
    make: Callable[[int, int, PipelineCosts], Schedule],
    ranks: int,
    microbatches: int,
    seconds: tuple[float, float, float],
    hop: float,
    published: float,
    peak: int,
) -> None:
    """Makespan and peak are those of the authors' code (zero-bubble-pipeline-parallelism)."""
    cost = StageCost(*seconds, weight_bytes=1, send_seconds=hop, send_back_seconds=hop)
    costs = PipelineCosts((cost,) * (2 * ranks))
    schedule = make(ranks, microbatches, costs)
    assert simulate_pipeline(schedule, costs).makespan <= published
    assert max(peak_bytes(schedule, costs)) == peak


@pytest.mark.parametrize("ranks", range(2, 13))
def test_memory_is_a_third_or_half_of_that_of_1f1b(ranks: int) -> None:
    """In units of half a rank's share; a few more than in the limit of many ranks."""
    plain = max(peak_bytes(one_forward_one_backward(ranks, 48), equal_stages(ranks)))
    for make, share in ((v_min, 1 / 3), (v_half, 1 / 2)):
        peak = max(peak_bytes(make(ranks, 48), equal_stages(2 * ranks)))
        assert 2 * share * plain <= peak <= 2 * share * plain + 3


def test_no_micro_batch() -> None:
    for make in (v_min, v_half):
        with pytest.raises(UserError, match="one stage and one micro-batch, not 4 and 0"):
            make(2, 0)
