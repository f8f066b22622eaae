"""The heuristic of Zero Bubble for two stages a rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline.check import check
from ooodist.planner.pipeline.costs import equal_stages
from ooodist.planner.pipeline.named.zero_bubble_v import automatic
from ooodist.planner.pipeline.simulate import peak_bytes, simulate_pipeline
from tests.planner.pipelines import stage_costs


@given(st.data(), st.integers(1, 6), st.integers(1, 12))
def test_all_can_run(data: st.DataObject, ranks: int, microbatches: int) -> None:
    costs = data.draw(stage_costs(2 * ranks))
    limit = data.draw(st.one_of(st.none(), st.integers(0, 100)))
    schedules = list(automatic(ranks, microbatches, replace(costs, memory_limit=limit)))
    assert len(schedules) >= 8
    for schedule in schedules:
        check(schedule)


@pytest.mark.parametrize("ranks", range(1, 9))
def test_there_is_no_bubble_where_all_takes_the_same_time(ranks: int) -> None:
    """Within the memory of 1F1B, which is that of ZB-V."""
    costs = replace(equal_stages(2 * ranks), memory_limit=2 * ranks)
    fitting = [
        schedule
        for schedule in automatic(ranks, 2 * ranks, costs)
        if max(peak_bytes(schedule, costs)) <= 2 * ranks
    ]
    assert min(max(simulate_pipeline(s, costs).spans) for s in fitting) == 12 * ranks


def test_no_micro_batch() -> None:
    with pytest.raises(UserError, match="at least one stage and one micro-batch"):
        list(automatic(2, 0, equal_stages(4)))
