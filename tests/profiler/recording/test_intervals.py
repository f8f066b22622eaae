"""Sets of moments: against a slow look at single moments, and by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ooodist.profiler.recording.intervals import (
    Interval,
    common_intervals,
    merge_intervals,
    total_length,
    without_intervals,
)

interval = st.tuples(st.integers(0, 20), st.integers(1, 5)).map(lambda s: (s[0], s[0] + s[1]))
some = st.lists(interval, max_size=6)


def moments(intervals: list[Interval]) -> set[float]:
    """The middles of the whole numbers' intervals that are covered."""
    return {at + 0.5 for at in range(30) if any(start <= at < end for start, end in intervals)}


def test_merge_intervals() -> None:
    assert merge_intervals([(3, 4), (0, 2), (1, 2.5), (2.5, 2.6)]) == [(0, 2.6), (3, 4)]


def test_nothing() -> None:
    assert merge_intervals([]) == common_intervals([], [(0, 1)]) == without_intervals([], [(0, 1)])
    assert without_intervals([(0, 1)], []) == [(0, 1)]
    assert total_length([]) == 0


@given(some, some)
def test_sets(first: list[Interval], second: list[Interval]) -> None:
    a, b = merge_intervals(first), merge_intervals(second)
    assert moments(a) == moments(first)
    assert moments(common_intervals(a, b)) == moments(a) & moments(b)
    assert moments(without_intervals(a, b)) == moments(a) - moments(b)
    assert total_length(a) == len(moments(a))
    for merged in (a, common_intervals(a, b), without_intervals(a, b)):
        assert merged == merge_intervals(merged)
