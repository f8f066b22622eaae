"""The bars of a pipeline timeline: F, I, W and the optimizer's update, one lane per rank.

::

    actions   1F0  1F1  1B0            update
    bars      F 0  F 1  I 0     W 0    U
"""

from __future__ import annotations

from dataclasses import dataclass

from ooodist.planner.pipeline.actions import BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from ooodist.report.pipeline.outcomes import Simulated

UPDATE = "U"


@dataclass(frozen=True)
class Bar:
    """A bar on the lane of a rank.

    Attributes:
        kind: ``F``, ``I``, ``W`` or ``U``.
        start, end: seconds from the start of the step.
        action: the action that the bar shows, in whole or in part; None: the update.
    """

    kind: str
    start: float
    end: float
    action: Action | None = None


def bars(simulated: Simulated) -> list[list[Bar]]:
    """Returns each rank's bars in order; a B becomes I and W, and updates of zero time are none."""
    timeline, costs = simulated.timeline, simulated.plan.costs
    result = []
    for runs, update in zip(timeline.runs, timeline.updates, strict=True):
        lane: list[Bar] = []
        for action, start, end in ((run.action, run.start, run.end) for run in runs):
            if action.kind == BACKWARD:
                middle = min(end, start + costs.stages[action.stage].input_gradient)
                lane.append(Bar(INPUT_GRADIENT, start, middle, action))
                lane.append(Bar(WEIGHT_GRADIENT, middle, end, action))
            else:
                lane.append(Bar(action.kind, start, end, action))
        if update:
            begin = lane[-1].end if lane else 0.0
            lane.append(Bar(UPDATE, begin, begin + update))
        result.append(lane)
    return result


def joins_gradients(simulated: Simulated) -> bool:
    """Returns whether some action is a B, whose input gradient is sent only after its W."""
    actions = simulated.plan.schedule.actions
    return any(action.kind == BACKWARD for lane in actions for action in lane)
