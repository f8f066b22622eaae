"""Late actions are found, and delay what follows from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts, equal_stages
from ooodist.planner.pipeline.named.schedules import gpipe
from ooodist.planner.pipeline.simulate import simulate_pipeline
from tests.pipeline.lateness import lateness, step_with
from tests.planner.pipelines import pipelines


def longer(costs: PipelineCosts) -> PipelineCosts:
    """The same, with a second more for each action."""
    return replace(
        costs,
        stages=tuple(
            replace(
                stage,
                forward=stage.forward + 1,
                input_gradient=stage.input_gradient + 1,
                weight_gradient=stage.weight_gradient + 1,
            )
            for stage in costs.stages
        ),
    )


@given(pipelines(), st.integers(0, 1000))
def test_lateness_is_found_in_the_step_that_it_makes(
    pipeline: tuple[Schedule, PipelineCosts], seed: int
) -> None:
    schedule, costs = pipeline[0], longer(pipeline[1])
    chance = np.random.default_rng(seed)
    late = {
        action: float(chance.integers(0, 5)) / 8  # exact sums
        for actions in schedule.actions
        for action in actions
    }
    step = step_with(schedule, costs, late)
    ends = {run.action: run.end for runs in step.runs for run in runs}
    assert lateness(schedule, costs, [0.0] * schedule.ranks, ends) == late
    assert step.step_seconds >= simulate_pipeline(schedule, costs).step_seconds


@given(pipelines())
def test_without_lateness_a_step_is_the_simulated_one(
    pipeline: tuple[Schedule, PipelineCosts],
) -> None:
    schedule, costs = pipeline[0], longer(pipeline[1])
    late = {action: 0.0 for actions in schedule.actions for action in actions}
    assert step_with(schedule, costs, late) == simulate_pipeline(schedule, costs)


def test_a_rank_that_begins_later_is_not_late() -> None:
    """Of two ranks, the second begins 5 s after the first; then the last action is half a second
    late."""
    schedule = gpipe(2, 1)
    (first, last), (second, third) = schedule.actions
    ends = {first: 1.0, second: 6.0, third: 8.0, last: 10.5}
    late = lateness(schedule, equal_stages(2), [0.0, 5.0], ends)
    assert late == {first: 0.0, second: 0.0, third: 0.0, last: 0.5}
