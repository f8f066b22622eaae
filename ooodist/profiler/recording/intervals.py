"""Set operations on lists of intervals (start, end), in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def common_intervals(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The intersection of two merged lists of intervals, merged."""
    common: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            common.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def without_intervals(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The difference of two merged lists of intervals, first minus second, merged."""
    gaps = []
    before = float("-inf")
    for start, end in second:
        gaps.append((before, start))
        before = end
    return common_intervals(first, [*gaps, (before, float("inf"))])


def total_length(intervals: Iterable[Interval]) -> float:
    """The sum of the lengths of merged intervals."""
    return sum(end - start for start, end in intervals)
