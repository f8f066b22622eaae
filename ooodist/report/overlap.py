"""Measures how much of the exchange is hidden behind computation, recorded or simulated.

::

    compute     dW3 dX2 dW2 dX1 dW1          of a rank of a pipeline: F  I  W0a W1a W0b W1b
    exchange       |--- 3 ---||-- 2 --|                                       |-- a --||-- b --|
    hidden         |----------------|                                         |-------|
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ooodist.profiler.recording.intervals import (
    Interval,
    common_intervals,
    merge_intervals,
    total_length,
    without_intervals,
)

if TYPE_CHECKING:
    from ooodist.planner.data_parallel.simulate import Simulation
    from ooodist.planner.pipeline.simulate import PipelineTimeline
    from ooodist.profiler.recording.timeline import Timeline  # imports TensorFlow

UNIT_KINDS = ("F", "dX", "dW")


@dataclass(frozen=True)
class Overlap:
    """How long exchanges took in the steps that were examined, and how much of it was hidden.

    Attributes:
        exchange: seconds in which at least one exchange was in flight.
        hidden: seconds of these in which the same rank computed as well.
    """

    exchange: float
    hidden: float

    @property
    def share(self) -> float:
        """The hidden share of the exchange, 0 to 1; 1 if nothing was exchanged."""
        return self.hidden / self.exchange if self.exchange else 1.0


def measure_overlap(timeline: Timeline) -> Overlap:
    """Measures the exchanges of a recording, and how much of them computation hid.

    An exchange counts from when it was handed to the engine: waiting for slower ranks and in the
    engine's own queue is included. Computation is the ops of the units, not their gaps.
    """
    return overlap_of(
        ((run.start, run.end) for run in timeline.exchanges),
        ((event.start, event.end) for run in timeline.units for event in run.events),
    )


def simulated_overlap(simulation: Simulation, latency: float) -> Overlap:
    """Measures the same of a simulated call: what a recording would show if it went as predicted.

    Args:
        simulation: the simulated call.
        latency: seconds from handing an exchange over until its bytes move, as in
            :class:`ooodist.planner.costs.Network`. (An exchange that waits longer does so behind
            another that is in flight.)
    """
    others = [(span.start, span.end) for span in simulation.units if span.kind not in UNIT_KINDS]
    whole = [(0.0, simulation.units[-1].end)]
    return overlap_of(
        ((span.start - latency, span.end) for span in simulation.exchanges),
        # Includes the exchanges' CPU time, by which real units take longer.
        without_intervals(whole, merge_intervals([*idle_times(simulation), *others])),
    )


def idle_times(simulation: Simulation) -> list[Interval]:
    """Finds when the compute stream waits for an exchange, in seconds from the start of the call.

    It may do so from the start, for a carried one. A wait ends when an exchange is complete. A gap
    that ends at another time is CPU time of exchanges.
    """
    ends = {span.end for span in simulation.exchanges}
    starts = (span.start for span in simulation.units)
    busy_until = itertools.chain([0.0], (span.end for span in simulation.units))
    return [
        (end, start)
        for end, start in zip(busy_until, starts, strict=False)
        if start > end and start in ends
    ]


def overlap_of(exchanges: Iterable[Interval], computation: Iterable[Interval]) -> Overlap:
    """Measures how much of some exchanges of a rank its computation hides, given as intervals."""
    exchange = merge_intervals(exchanges)
    hidden = common_intervals(exchange, merge_intervals(computation))
    return Overlap(total_length(exchange), total_length(hidden))


def replica_overlap(timelines: Sequence[PipelineTimeline]) -> Overlap:
    """The sums of a step of a rank, the mean over all ranks of these steps, of which there
    is at least one.

    A sum counts from when its rank begins it: waiting for a slower replica is included. Sums that
    are in transit together count once. Hidden is the part in which the same rank runs an action.
    """
    found = [
        overlap_of(
            ((each.start, each.end) for each in exchanges),
            ((run.start, run.end) for run in runs),
        )
        for timeline in timelines
        for runs, exchanges in zip(timeline.runs, timeline.exchanges, strict=True)
    ]
    return Overlap(
        statistics.fmean(each.exchange for each in found),
        statistics.fmean(each.hidden for each in found),
    )


def sums_line(sums: Overlap) -> str:
    """Says how long the sums over replicas of a step take, and which share of that is hidden."""
    milliseconds = sums.exchange * 1e3
    return f"replica sums: {milliseconds:.1f} ms a step, {sums.share:.0%} hidden behind computing"
