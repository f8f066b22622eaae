"""The line that shows how far a search is."""

from __future__ import annotations

import io
import math

import pytest

from ooodist.planner.progress import SearchState
from ooodist.report import search_line
from ooodist.report.search_line import described

STATE = SearchState("random changes", 1200, 0.25, 4.7684, 6.0221)
TEXT = (
    "random changes: 1,200 plans simulated, best 4768.4 ms a step (baseline 6022.1 ms), "
    "10 s, about 30 s left"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(search_line, "time", made)
    return made


def show(stream: io.StringIO, clock: Clock, seconds: list[float]) -> str:
    start = clock.now
    with search_line.search_line(stream) as line:
        for passed in seconds:
            clock.now = start + passed
            line(STATE)
    return stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_short_searches_say_nothing(stream: io.StringIO, clock: Clock) -> None:
    assert show(stream, clock, [0.0, 1.0, 1.9]) == ""


def test_a_terminal_has_one_line_that_is_empty_in_the_end(clock: Clock) -> None:
    shown = show(Terminal(), clock, [1.0, 2.1, 2.2, 10.0])
    lines = shown.split("\r")
    assert len(lines) == 4  # what comes 0.1 s after another is left out
    assert lines[2] == f"ooodist: {TEXT}\x1b[K"
    assert lines[3] == "\x1b[K"
    assert "\n" not in shown


def test_a_file_has_a_line_every_ten_seconds(clock: Clock) -> None:
    lines = show(io.StringIO(), clock, [2.0, 9.9, 10.0, 15.0, 20.5]).splitlines()
    assert len(lines) == 2
    assert lines[0] == f"ooodist: {TEXT}"


def test_nothing_is_said_of_what_is_not_known_yet() -> None:
    state = SearchState("plans with a name", 1, 0.5, math.inf, math.inf)
    assert described(state, 4.0) == ("plans with a name: 1 plan simulated, 4 s, about 4 s left")
