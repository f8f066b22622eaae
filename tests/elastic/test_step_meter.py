"""The seconds of steps, and whether they can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ooodist.elastic.step_meter import StepMeter


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [
        ([1.0, 1.1, 1.0, 1.1, 9.0], 1.1),  # a single one is nothing
        ([1.0, 1.1, 1.0, 2.0, 2.0], None),
        ([1.0, 1.0, 1.0], None),  # too few
    ],
)
def test_steps_that_are_disturbed_are_not_steady(
    seconds: Sequence[float], steady: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, meter = [0.0], StepMeter()
    monkeypatch.setattr("ooodist.elastic.step_meter.time.perf_counter", lambda: now[0])
    for each in (5.0, *seconds):  # the first is traced
        now[0] += 2 * each
        meter.launched("a", 2)
    assert meter.steady("a") == (None if steady is None else pytest.approx(steady))
    assert meter.steady("b") is None
