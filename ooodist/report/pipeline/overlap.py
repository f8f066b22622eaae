"""Measures how much of the sums over replicas is hidden behind what ranks compute.

::

    rank     F  I  W0a W1a W0b W1b            update
    sums                   |-- a --||-- b --|
    hidden                 |-------|
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ooodist.planner.pipeline.simulate import PipelineTimeline
from ooodist.report.data_parallel.overlap import Overlap, overlap_of


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


def line(sums: Overlap) -> str:
    """Says in words how long the sums of a step take, and which share of that is hidden."""
    return (
        f"replica sums: {sums.exchange * 1e3:.1f} ms a step, {sums.share:.0%} hidden behind "
        "computing"
    )
