"""What stages are measured to cost."""

from __future__ import annotations

from typing import NamedTuple

from ooodist.pipeline.measure import StepTimings, seconds_by_kind
from ooodist.planner.pipeline.actions import Action


class Ran(NamedTuple):
    """As of ooodist.pipeline.runtime.runtime, which starts MPI where it is imported."""

    action: Action
    start: float
    end: float
    waited: float


def test_what_moves_messages_counts_as_the_action_that_needs_it() -> None:
    """By medians; what was waited does not count."""
    ran = [
        Ran(Action(1, "RECV_F", 0), 0.0, 9.0, 8.5),
        Ran(Action(1, "F", 0), 9.0, 11.0, 0.0),
        Ran(Action(1, "F", 1), 11.0, 14.0, 0.0),
        Ran(Action(1, "F", 2), 14.0, 54.0, 0.0),  # something else had the core
        Ran(Action(1, "SEND_F", 0), 54.0, 54.25, 0.0),
        Ran(Action(1, "I", 0), 55.0, 59.0, 0.0),
        Ran(Action(1, "SEND_B", 0), 59.0, 59.5, 0.0),
        Ran(Action(1, "W", 0), 60.0, 61.0, 0.0),
        Ran(Action(3, "F", 0), 61.0, 62.0, 0.0),
    ]
    assert seconds_by_kind(ran) == {(1, "F"): 3.75, (1, "I"): 4.5, (1, "W"): 1.0, (3, "F"): 1.0}


def test_the_first_step_that_is_noted_does_not_count() -> None:
    timings = StepTimings()
    for step in range(3):
        timings.add([Ran(Action(0, "F", step), 0.0, 1.0, 0.0)], float(step))
    assert [each.action.microbatch for each in timings.ran] == [1, 2]
    assert timings.updates == [1.0, 2.0]
