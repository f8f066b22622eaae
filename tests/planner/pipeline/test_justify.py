"""Actions that move into gaps."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.check import check
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, equal_stages, forward_only
from ooodist.planner.pipeline.justify import justified
from ooodist.planner.pipeline.named.schedules import one_forward_one_backward
from ooodist.planner.pipeline.search import split
from ooodist.planner.pipeline.simulate import peak_bytes, simulate_pipeline
from tests.planner.pipelines import partly_trained


def test_w_makes_way() -> None:
    """As in the module's drawing."""
    schedule = split(one_forward_one_backward(2, 2))
    costs = equal_stages(2)
    found = justified(schedule, costs)
    assert [" ".join(map(str, actions)) for actions in found.actions] == [
        "0F0 0F1 0I0 0W0 0I1 0W1",
        "1F0 1I0 1F1 1I1 1W0 1W1",
    ]
    assert simulate_pipeline(schedule, costs).makespan == 8
    assert simulate_pipeline(found, costs).makespan == 7


@given(partly_trained(), st.booleans())
def test_nothing_becomes_slower_or_needs_more_memory(
    pipeline: tuple[Schedule, Schedule, PipelineCosts], is_limited: bool
) -> None:
    """Where no link is in use when another message is ready, and W's have no buckets."""
    _, schedule, costs = pipeline
    costs = PipelineCosts(
        tuple(
            StageCost(
                *(each.seconds(kind) + 1 for kind in "FIW"),
                *each.in_flight_bytes,
                update=each.update,
                send_seconds=each.send_seconds / 2,
                send_back_seconds=each.send_back_seconds / 2,
            )
            for each in costs.stages
        )
    )
    costs = forward_only(costs, schedule.first_trained)
    schedule = split(schedule)
    peak = max(peak_bytes(schedule, costs))
    found = justified(schedule, replace(costs, memory_limit=peak if is_limited else None))
    check(found)
    assert found.first_trained == schedule.first_trained
    before, after = (simulate_pipeline(each, costs) for each in (schedule, found))
    assert after.step_seconds <= before.step_seconds
    if is_limited:
        assert max(peak_bytes(found, costs)) <= peak
