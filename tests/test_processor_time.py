from __future__ import annotations

import time

import pytest

from tests import processor_time
from tests.processor_time import LOOP_SECONDS, fastest


def test_the_fastest_run_counts_and_waiting_does_not() -> None:
    def work() -> None:
        runs.append(1)
        if len(runs) != 2:
            time.sleep(0.05)
            for _ in range(20):
                processor_time._loop()

    runs: list[int] = []
    assert fastest(work, runs=3) < LOOP_SECONDS
    assert len(runs) == 3


@pytest.mark.parametrize(("slower", "expected"), [(3.0, 0.2), (1.0, 0.6), (0.5, 0.6)])
def test_on_a_slow_machine_the_same_work_counts_for_as_much(
    monkeypatch: pytest.MonkeyPatch, slower: float, expected: float
) -> None:
    """One that is faster gains nothing, as only the limit is of interest."""

    def seconds(call: object) -> float:
        return slower * LOOP_SECONDS if call is processor_time._loop else next(runs)

    runs = iter([0.9, 0.6, 0.7])
    monkeypatch.setattr(processor_time, "_seconds", seconds)
    assert fastest(lambda: None, runs=3) == pytest.approx(expected)
