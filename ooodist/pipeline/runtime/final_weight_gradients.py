"""Runs the W's at the end of a rank's schedule bucket by bucket, so that sums run beside them.

::

    schedule   ... I3 W0 W1 W2 W3
    runs       ... I3 W0a W1a W2a W3a W0b W1b W2b W3b         a, b: buckets of weights
    sums                             |---- a ----|   |---- b ----|

Each accumulator has the same additions in the same order, and no more is saved than at the start of
the tail. Among the W's of several stages, each stage keeps its places, and so its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ooodist.planner.pipeline.actions import Action


def parts_by_action(
    tail: Sequence[Action], parts: Mapping[int, int]
) -> dict[Action, list[tuple[int, int]]]:
    """What each action of a tail computes instead: micro-batches and parts of W, in order.

    Args:
        tail: the last actions of a rank, each with a W.
        parts: the number of parts of W, by stage; the W's of other stages stay as they are.
    """
    found: dict[Action, list[tuple[int, int]]] = {}
    for stage, number in parts.items():
        own = [action for action in tail if action.stage == stage]
        calls = [(action.microbatch, part) for part in range(number) for action in own]
        for place, action in enumerate(own):
            found[action] = calls[place * number : (place + 1) * number]
    return found
