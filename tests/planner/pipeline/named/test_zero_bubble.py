"""The heuristic of Zero Bubble."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline.check import check
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, equal_stages
from ooodist.planner.pipeline.named.schedules import zero_bubble_h1, zero_bubble_h2
from ooodist.planner.pipeline.named.zero_bubble import automatic
from ooodist.planner.pipeline.simulate import peak_bytes, simulate_pipeline
from tests.planner.pipelines import stage_costs


@given(st.data(), st.integers(1, 6), st.integers(1, 9))
def test_all_can_run_and_keep_to_the_limit(
    data: st.DataObject, ranks: int, microbatches: int
) -> None:
    costs = data.draw(stage_costs(ranks))
    one = max(sum(stage.in_flight_bytes) + stage.base_bytes for stage in costs.stages)
    limit = data.draw(st.one_of(st.none(), st.integers(one, 3 * one)))
    costs = replace(costs, memory_limit=limit)
    schedules = list(automatic(microbatches, costs))
    assert len(schedules) == 8
    for schedule in schedules:
        check(schedule, costs)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_equal_stages_are_as_fast_as_by_hand(ranks: int) -> None:
    """With the memory of ZB-H1, and the spans of ZB-H2 with its memory."""
    microbatches = 3 * ranks
    costs = equal_stages(ranks)
    by_hand = simulate_pipeline(zero_bubble_h1(ranks, microbatches), costs)
    found = list(automatic(microbatches, replace(costs, memory_limit=ranks)))
    assert max(max(peak_bytes(schedule, costs)) for schedule in found) <= ranks
    assert min(simulate_pipeline(s, costs).makespan for s in found) == by_hand.makespan
    spans = simulate_pipeline(zero_bubble_h2(ranks, microbatches), costs).spans
    found = list(automatic(microbatches, replace(costs, memory_limit=2 * ranks - 1)))
    assert min(max(simulate_pipeline(s, costs).spans) for s in found) == max(spans)


def test_each_choice_makes_a_difference() -> None:
    """Rank 0 gets its first I at 5, in the middle of F2. Then it can do I1 at once, instead of F3.
    Rank 1 waits for F2 for 1 s, which is less than its W takes."""
    costs = PipelineCosts((StageCost(2, 2, 1), StageCost(2, 1, 2)))
    orders = [
        tuple(" ".join(str(action)[1:] for action in actions) for actions in schedule.actions)
        for schedule in automatic(4, costs)
    ]
    late_backward_first = (
        "F0 F1 F2 I0 I1 F3 W0 W1 I2 W2 I3 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    )
    late = ("F0 F1 F2 I0 F3 W0 I1 W1 I2 W2 I3 W3", "F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3")
    filled = ("F0 F1 I0 F2 I1 F3 W0 W1 I2 W2 I3 W3", "F0 I0 F1 I1 W0 F2 I2 F3 I3 W1 W2 W3")
    neither = (filled[0], "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3")
    assert orders == [*[late_backward_first] * 2, *[late] * 2, *[filled, neither] * 2]


def test_no_micro_batch() -> None:
    with pytest.raises(UserError, match="at least one stage and one micro-batch"):
        list(automatic(0, equal_stages(2)))
