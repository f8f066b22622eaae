"""Sharing out the time of several threads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.profiler.occupancy import share_out

Event = tuple[float, float, str]
times = st.integers(0, 100).map(float)
events = st.lists(
    st.tuples(times, times, st.sampled_from("abcd")).map(
        lambda event: (min(event[:2]), max(event[:2]), event[2])
    ),
    min_size=1,
    max_size=12,
)


def test_two_threads() -> None:
    # thread 1   |-- a --|     |-- c --|
    # thread 2       |-- b --|
    assert share_out([(0, 2, "a"), (1, 3, "b"), (4, 6, "c")]) == {"a": 1.5, "b": 1.5, "c": 3}


def test_three_at_a_time() -> None:
    assert share_out([(0, 3, "a"), (0, 3, "b"), (0, 6, "c")]) == {"a": 1, "b": 1, "c": 4}


def test_one_label_at_the_same_time_counts_once() -> None:
    assert share_out([(0, 2, "a"), (0, 2, "a")]) == {"a": 2}


def test_nothing() -> None:
    assert share_out([]) == {}


@given(events)
def test_all_of_the_time_is_shared_out(found: list[Event]) -> None:
    seconds = share_out(found)
    span = max(end for _, end, _ in found) - min(start for start, _, _ in found)
    assert sum(seconds.values()) == pytest.approx(span)
    assert all(value >= 0 for value in seconds.values())
    assert set(seconds) == {label for _, _, label in found}


@given(events)
def test_an_op_gets_no_more_than_it_ran_and_the_pause_before_it(found: list[Event]) -> None:
    for label, value in share_out(found).items():
        own = sum(end - start for start, end, other in found if other == label)
        pauses = _pauses(found)
        assert value <= own + pauses + 1e-9


def _pauses(found: list[Event]) -> float:
    paused, end = 0.0, min(start for start, _, _ in found)
    for start, until, _ in sorted(found):
        paused += max(0.0, start - end)
        end = max(end, until)
    return paused
