"""How late each action of an emulated step was, and the step that follows from such delays.

An action could end its own seconds after what it waits for: the action of its rank before it, and
the messages that it needs. What it ends later is either the runtime's doing, in every step, or that
of a machine that was busy with something else, in some. So the step in which each action is as late
as it was in the best of several is the runtime's, however the machine was disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ooodist.planner.pipeline.actions import Action, Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.dependencies import needs_of, result_of, users_of
from ooodist.planner.pipeline.simulate import (
    Links,
    Message,
    PipelineTimeline,
    Run,
    exchanges_of,
    simulate_pipeline,
)

Seconds = Mapping[Action, float]


def lateness(
    schedule: Schedule, costs: PipelineCosts, begins: Sequence[float], ends: Seconds
) -> dict[Action, float]:
    """Seconds by which each F, I and W ended after it could have.

    Args:
        schedule: that was carried out; all its stages train.
        costs: of its stages; F, I and W all take time.
        begins: of the step on each rank, on one clock.
        ends: of each F, I and W, on the same clock.
    """
    late = {}

    def recorded(action: Action, due: float) -> float:
        late[action] = ends[action] - due
        return ends[action]

    _walk(schedule, costs, begins, recorded)
    return late


def step_with(schedule: Schedule, costs: PipelineCosts, late: Seconds) -> PipelineTimeline:
    """The step in which each F, I and W ends so many seconds after it could."""
    simulated = simulate_pipeline(schedule, costs)
    ends = _walk(schedule, costs, [0.0] * schedule.ranks, lambda action, due: due + late[action])
    runs = tuple(
        tuple(
            Run(run.action, ends[run.action] - (run.end - run.start), ends[run.action])
            for run in of_rank
        )
        for of_rank in simulated.runs
    )
    exchanges = tuple(exchanges_of(of_rank, costs) for of_rank in runs)
    return PipelineTimeline(runs, simulated.peak_bytes, simulated.updates, exchanges)


def _walk(
    schedule: Schedule,
    costs: PipelineCosts,
    begins: Sequence[float],
    end_of: Callable[[Action, float], float],
) -> dict[Action, float]:
    """The ends of all F, I and W: what ``end_of`` says of each and of when it could end."""
    ended = list(begins)  # of each rank, its last action
    there: dict[Message, float] = {}
    links = Links(schedule.rank_of)
    ends = {}
    for action in _in_turn(schedule, costs):
        stage, kind, microbatch = action
        cost, rank = costs.stages[stage], schedule.rank_of[stage]
        needed = [
            there[result, maker, stage, microbatch]
            for maker, result in needs_of(stage, kind, schedule.stages)
        ]
        end = end_of(action, max(ended[rank], *needed, begins[rank]) + cost.seconds(kind))
        ends[action] = ended[rank] = end
        for user, _ in users_of(stage, kind, schedule.stages):
            at = links.arrival(stage, user, end, cost.transfer_seconds(kind))
            there[result_of(kind), stage, user, microbatch] = at
    return ends


def _in_turn(schedule: Schedule, costs: PipelineCosts) -> list[Action]:
    """All F, I and W; what one needs, or what its rank does before it, comes before it."""
    runs = [run for of_rank in simulate_pipeline(schedule, costs).runs for run in of_rank]
    return [run.action for run in sorted(runs, key=lambda run: (run.start, run.end))]
