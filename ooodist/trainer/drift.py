"""Detects that the time per batch has changed since training began."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ooodist.engines.base import Engine
from ooodist.step.execution import Batch, Run

WINDOW_CALLS = 64  # each window's median is compared with that of the first
DRIFT = 0.12  # relative; another program on half of one of two cores costs at most 20 %
DRIFTED_WINDOWS = 2  # consecutive ones, until all is tried again; doubled each time


class DriftDetector:
    """Trains, and detects that the time per batch has changed since training began.

    Calls are timed from start to start, so that nobody waits for an accelerator. A window counts
    with the median of its calls, and of the ranks the slowest. Here four windows::

        call     | | | | | | | | | | | |   |   |   |   |   |   |   |   | ...
        window   | the first | is alike  | differs       | differs: drifted

    Args:
        engine: what the ranks communicate with.
        run: trains on batches.
        windows: how many consecutive windows must differ to make a drift.
        drifted: called on a drift with the seconds per batch before and now.
    """

    def __init__(
        self, engine: Engine, run: Run, windows: int, drifted: Callable[[float, float], None]
    ) -> None:
        self._engine = engine
        self._run = run
        self._windows = windows
        self._drifted = drifted
        self._first: float | None = None
        self._times: list[float] = []
        self._different = 0
        self._last: tuple[float, int] | None = None

    def __call__(self, batches: Sequence[Batch]) -> dict[str, Any]:
        """Trains on batches and returns the logs."""
        now = time.perf_counter()
        if self._last is not None:
            self._times.append((now - self._last[0]) / self._last[1])
        self._last = now, len(batches)
        logs = self._run(batches)
        if len(self._times) == WINDOW_CALLS:
            self._compare(statistics.median(self._times))
            self._times.clear()
        return logs

    def _compare(self, seconds: float) -> None:
        now = float(self._engine.all_reduce(np.array([seconds]), "max")[0])
        if self._first is None:
            self._first = now
        is_alike = abs(now / self._first - 1) <= DRIFT
        self._different = 0 if is_alike else self._different + 1
        if self._different == self._windows:
            self._drifted(self._first, now)
