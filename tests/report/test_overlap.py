"""Hidden and exposed seconds of exchanges, on timelines made by hand."""

from __future__ import annotations

import pytest

from ooodist.report.overlap import measure_overlap
from ooodist.report.timeline import ExchangeRun, Timeline, UnitRun
from ooodist.report.xplane import OpEvent


def unit(*spans: tuple[float, float]) -> UnitRun:
    events = tuple(OpEvent("op", "MatMul", start, end, "cpu", 1) for start, end in spans)
    busy = sum(end - start for start, end in spans)
    return UnitRun(0, "dW:a", "dW", spans[0][0], spans[-1][1], busy, events, events)


def exchange(start: float, end: float) -> ExchangeRun:
    return ExchangeRun(0, "a", ("a",), 4, start, end, None, None)


def test_partly_hidden() -> None:
    # compute   |--0 1--|     |--3 4--|          |--8 9--|
    # exchange      |---0.5 ----- 3.5---|  |--6 ... 7--|
    units = (unit((0, 1), (3, 4)), unit((8, 9)))
    overlap = measure_overlap(Timeline((1,), units, (exchange(0.5, 3.5), exchange(6, 7))))
    assert overlap.exchange == pytest.approx(4)
    assert overlap.hidden == pytest.approx(1)  # not the gap within the first unit
    assert overlap.share == pytest.approx(0.25)


def test_exchanges_at_the_same_time_count_once() -> None:
    overlap = measure_overlap(Timeline((1,), (unit((0, 4)),), (exchange(1, 3), exchange(2, 5))))
    assert (overlap.exchange, overlap.hidden) == (4, 3)


def test_no_exchange() -> None:
    overlap = measure_overlap(Timeline((1,), (unit((0, 4)),), ()))
    assert (overlap.exchange, overlap.hidden, overlap.share) == (0, 0, 1)


def test_no_computation() -> None:
    assert measure_overlap(Timeline((1,), (), (exchange(1, 3),))).share == 0
