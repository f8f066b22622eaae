"""Attributes time to ops, from a recording of many threads.

The time from the first to the last event is attributed completely: ops that run at the same time
share it equally, and a pause belongs to the op that comes after it (the executor was about to
start it)::

    thread 1   |-- a --|     |-- c --|
    thread 2       |-- b --|
               0   1   2   3 4       6

    a 1.5, b 1.5, c 3
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Label = TypeVar("Label", bound=Hashable)


def share_out(events: Iterable[tuple[float, float, Label]]) -> dict[Label, float]:
    """Seconds by label, which add up to the time from the first start to the last end.

    Args:
        events: (start, end, label), in any order; a label may have several.
    """
    spans = list(events)
    starts = [(start, 0, index) for index, (start, _, _) in enumerate(spans)]
    ends = [(end, 1, index) for index, (_, end, _) in enumerate(spans)]
    changes = sorted(starts + ends)  # an event without length starts before it ends
    seconds = {label: 0.0 for _, _, label in spans}
    running: set[int] = set()
    now = changes[0][0] if changes else 0.0
    for time, is_end, index in changes:
        sharers = running or {index}
        for sharer in sharers:
            seconds[spans[sharer][2]] += (time - now) / len(sharers)
        now = time
        if is_end:
            running.remove(index)
        else:
            running.add(index)
    return seconds
