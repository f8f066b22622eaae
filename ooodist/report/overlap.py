"""How much of the exchange was hidden behind computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooodist.report.timeline import Timeline, merge_intervals


@dataclass(frozen=True)
class Overlap:
    """Seconds of a whole recording on this rank.

    Attributes:
        exchange: in which at least one exchange was in flight.
        hidden: of these, in which a unit computed as well.
    """

    exchange: float
    hidden: float

    @property
    def share(self) -> float:
        """Hidden part of the exchange, 0 to 1; 1 where nothing was exchanged."""
        return self.hidden / self.exchange if self.exchange else 1.0


def measure_overlap(timeline: Timeline) -> Overlap:
    """What the exchanges of a recording took, and how much of it computation hid.

    An exchange counts from when it was handed to the engine: waiting for slower ranks, and for
    the engine's own queue, is in it. Computation is the ops of the units, not their gaps.
    """
    exchange = merge_intervals((run.start, run.end) for run in timeline.exchanges)
    compute = merge_intervals(
        (event.start, event.end) for run in timeline.units for event in run.events
    )
    return Overlap(sum(end - start for start, end in exchange), _common(exchange, compute))


def _common(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> float:
    """The length that two sorted lists of intervals have in common."""
    total = 0.0
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        total += max(0.0, end - start)
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total
