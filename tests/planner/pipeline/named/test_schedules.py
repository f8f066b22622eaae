"""The schedules that have a name: their makespans, their memory, and that they can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.check import check
from ooodist.planner.pipeline.costs import PipelineCosts, equal_stages
from ooodist.planner.pipeline.named.schedules import (
    fast_forward,
    gpipe,
    interleaved,
    modulo,
    one_forward_one_backward,
    push,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from ooodist.planner.pipeline.simulate import PipelineTimeline, simulate_pipeline
from tests.planner.pipelines import schedules, stage_costs

MANY = [(p, m) for p in range(2, 17) for m in (p, p + 1, 2 * p, 2 * p + 3, 37, 64) if m >= p]
SECONDS = [(1.0, 1.0, 1.0), (1.0, 1.125, 0.75), (2.0, 2.5, 1.5)]


def run(schedule: Schedule, seconds: tuple[float, float, float] = (1, 1, 1)) -> PipelineTimeline:
    return simulate_pipeline(schedule, equal_stages(schedule.stages, *seconds))


@pytest.mark.parametrize(
    ("ranks", "microbatches", "plain", "h1"), [(4, 8, 33, 27), (8, 24, 93, 79)]
)
def test_known_makespans(ranks: int, microbatches: int, plain: int, h1: int) -> None:
    assert run(one_forward_one_backward(ranks, microbatches)).makespan == plain
    assert run(gpipe(ranks, microbatches)).makespan == plain
    assert run(zero_bubble_h1(ranks, microbatches)).makespan == h1


@pytest.mark.parametrize("seconds", SECONDS)
def test_closed_forms(seconds: tuple[float, float, float]) -> None:
    forward, backward, weight = seconds
    for p, m in MANY:
        work = m * sum(seconds)
        plain = work + (p - 1) * sum(seconds)
        assert run(gpipe(p, m), seconds).makespan == plain
        assert run(one_forward_one_backward(p, m), seconds).makespan == plain
        h1 = run(zero_bubble_h1(p, m), seconds)
        assert h1.makespan == work + (p - 1) * (forward + backward - weight)
        if m >= 2 * p - 1:
            h2 = run(zero_bubble_h2(p, m), seconds)
            assert max(h2.spans) == work + (p - 1) * max(0, forward + backward - 2 * weight)


def test_interleaving_divides_the_bubble() -> None:
    for p, m, v in ((2, 4, 2), (4, 8, 2), (4, 8, 4), (8, 16, 2), (8, 32, 3)):
        chunk = 1 / v, 1 / v, 1 / v
        timeline = run(interleaved(p, m, v), chunk)
        assert timeline.makespan == pytest.approx(3 * m + 3 * (p - 1) / v)


def test_h2_has_the_makespan_of_h1_at_equal_costs() -> None:
    for p, m in ((2, 4), (4, 8), (8, 24)):
        one, other = run(zero_bubble_h1(p, m)), run(zero_bubble_h2(p, m))
        assert one.makespan == other.makespan
        assert max(other.spans) == 3 * m
        assert max(one.peak_bytes) == p
        assert max(other.peak_bytes) == 2 * p - 1


def test_v_has_no_bubble_at_equal_costs() -> None:
    for p in range(1, 9):
        for m in (2 * p - 1, 2 * p, 24):
            if m < 2 * p - 1:
                continue
            timeline = run(zero_bubble_v(p, m))
            assert timeline.spans == (6 * m,) * p
            assert max(timeline.peak_bytes) <= 2 * p  # of half a rank's share each


def test_the_eight_layers_of_the_paper() -> None:
    """4 devices, 8 layers, one second each for F, I and W of a layer."""
    pair = 2.0, 2.0, 2.0
    found = {
        "gpipe": [run(gpipe(4, m), pair).makespan for m in (1, 4, 8)],
        "fast_forward": [run(fast_forward(4, m), pair).makespan for m in (1, 4, 8)],
        "modulo": [run(modulo(4, m)).makespan for m in (1, 4, 8)],
    }
    assert found == {
        "gpipe": [24, 42, 66],
        "fast_forward": [18, 30, 54],
        "modulo": [17, 27, 51],
    }


def test_modulo_loses_where_a_hop_takes_long() -> None:
    """Half a second a hop: 27, 21 and 24."""

    def makespan(schedule: Schedule, seconds: float) -> float:
        costs = equal_stages(schedule.stages, seconds, seconds, seconds)
        stages = tuple(replace(s, send_seconds=0.5, send_back_seconds=0.5) for s in costs.stages)
        return simulate_pipeline(schedule, PipelineCosts(stages)).makespan

    assert makespan(gpipe(4, 1), 2) == 27
    assert makespan(fast_forward(4, 1), 2) == 21
    assert makespan(modulo(4, 1), 1) == 24


def test_push_keeps_no_more_than_one_micro_batch_a_rank_in_flight() -> None:
    for m in (1, 4, 8, 24):
        timeline = run(push(4, m, 2))
        assert max(timeline.peak_bytes) <= 4 * 2
        assert timeline.makespan <= 1.02 * run(modulo(4, m, 2)).makespan


@given(schedules())
def test_all_can_run(schedule: Schedule) -> None:
    check(schedule)
    simulate_pipeline(schedule, equal_stages(schedule.stages))


@pytest.mark.parametrize("microbatches", [1, 2, 3, 5, 8, 13, 40])
def test_interleaved_never_blocks(microbatches: int) -> None:
    """Also where the micro-batches are fewer than the ranks, or no multiple of them."""
    for ranks in (2, 3, 4, 7, 12):
        for chunks in (1, 2, 3, 4):
            check(interleaved(ranks, microbatches, chunks))


@given(st.data(), st.integers(1, 4), st.integers(1, 8), st.integers(1, 3))
def test_those_that_follow_costs_can_run_with_any(
    data: st.DataObject, ranks: int, microbatches: int, chunks: int
) -> None:
    costs = data.draw(stage_costs(ranks * chunks))
    for make in (modulo, push):
        check(make(ranks, microbatches, chunks, costs), costs)


@pytest.mark.parametrize(
    "make", [gpipe, one_forward_one_backward, interleaved, zero_bubble_h1, zero_bubble_v, push]
)
def test_no_micro_batches(make: Callable[[int, int], Schedule]) -> None:
    with pytest.raises(UserError, match=r"one stage and one micro-batch, not \d and 0"):
        make(2, 0)
    with pytest.raises(UserError, match="one stage and one micro-batch, not 0 and 4"):
        make(0, 4)
