"""Batches that take another time than at first are noticed; the clock is turned by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ooodist.engines.local import LocalEngine
from ooodist.trainer import drift
from ooodist.trainer.drift import DRIFT, WINDOW_CALLS, DriftDetector

NUM_WINDOWS = 2


@pytest.mark.parametrize(
    ("factors", "drifts"),
    [
        ([1, 1, 1, 1, 1], 0),
        ([1, 1 + DRIFT / 2, 1 + DRIFT / 2, 1 + DRIFT / 2], 0),
        ([1, 1 + 2 * DRIFT, 1 + 2 * DRIFT], 1),
        ([1, 1 - 2 * DRIFT, 1 + 2 * DRIFT], 1),
        ([1, 1 + 2 * DRIFT, 1, 1 + 2 * DRIFT, 1], 0),  # comes and goes
    ],
)
def test_so_many_windows_that_differ_are_a_drift(
    monkeypatch: pytest.MonkeyPatch, factors: list[float], drifts: int
) -> None:
    now, factor = 0.0, factors[0]
    found: list[tuple[float, float]] = []

    def run(batches: Sequence[Any]) -> dict[str, float]:
        nonlocal now
        now += 0.5 * factor * len(batches)
        return {}

    monkeypatch.setattr(drift.time, "perf_counter", lambda: now)
    train = DriftDetector(LocalEngine(), run, NUM_WINDOWS, lambda *seconds: found.append(seconds))
    train([0])  # calls count from start to start
    for each in factors:
        factor = each
        for call in range(WINDOW_CALLS):
            train([0] * (1 + call % 2))
    train([0])
    assert len(found) == drifts
    if drifts:
        assert found[0] == pytest.approx((0.5, 0.5 * factors[-1]), rel=0.01)
