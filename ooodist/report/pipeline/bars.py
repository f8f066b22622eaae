"""The bars of a pipeline timeline: F, I, W and the optimizer's update, one lane per rank.

::

    actions   1F0  1F1  1B0                  update
    bars      F 0  F 1  I 0     W 0          U
    exchange                         X       (a lane of its own, if there are replicas)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooodist.planner.pipeline.actions import BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from ooodist.report.pipeline.outcomes import Simulated

UPDATE = "U"
EXCHANGE = "X"
EXCHANGE_TITLE = "exchange"  # of the lane with a rank's exchanges


@dataclass(frozen=True)
class Bar:
    """A bar on the lane of a rank.

    Attributes:
        kind: ``F``, ``I``, ``W``, ``U`` or ``X``.
        start, end: seconds from the start of the step.
        action: the action that the bar shows, in whole or in part; None: an update or an exchange.
    """

    kind: str
    start: float
    end: float
    action: Action | None = None


@dataclass(frozen=True)
class Lane:
    """A row of bars with its title."""

    title: str
    bars: Sequence[Bar]


def lanes(simulated: Simulated) -> list[Lane]:
    """The lanes of all ranks, each followed by its exchanges if any rank has some."""
    exchanges = simulated.timeline.exchanges
    found = []
    for rank, computing in enumerate(bars(simulated)):
        found.append(Lane(f"rank {rank}", computing))
        if any(exchanges):
            moved = [Bar(EXCHANGE, each.start, each.end) for each in exchanges[rank]]
            found.append(Lane(EXCHANGE_TITLE, moved))
    return found


def bars(simulated: Simulated) -> list[list[Bar]]:
    """Each rank's bars in order; a B becomes I and W, and updates of zero time are none."""
    timeline, costs = simulated.timeline, simulated.plan.costs
    result = []
    updates = zip(timeline.update_starts, timeline.updates, strict=True)
    for runs, (begin, update) in zip(timeline.runs, updates, strict=True):
        lane: list[Bar] = []
        for action, start, end in ((run.action, run.start, run.end) for run in runs):
            if action.kind == BACKWARD:
                middle = min(end, start + costs.stages[action.stage].input_gradient)
                lane.append(Bar(INPUT_GRADIENT, start, middle, action))
                lane.append(Bar(WEIGHT_GRADIENT, middle, end, action))
            else:
                lane.append(Bar(action.kind, start, end, action))
        if update:
            lane.append(Bar(UPDATE, begin, begin + update))
        result.append(lane)
    return result


def joins_gradients(simulated: Simulated) -> bool:
    """Whether some action is a B, whose input gradient is sent only after its W."""
    actions = simulated.plan.schedule.actions
    return any(action.kind == BACKWARD for lane in actions for action in lane)
