"""Measures how long steps take with the current selection."""

from __future__ import annotations

import statistics
import time
from collections import deque

TIMED_LAUNCHES = 100  # number of latest calls over which the median is taken

LEAST_LAUNCHES = 4  # to know whether they are steady
MOST_SPREAD = 0.25  # of the quartiles of steady steps


class StepMeter:
    """Times steps from the end of one call to the end of the next."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=TIMED_LAUNCHES)
        self._digest = ""
        self._last: float | None = None

    def interrupted(self) -> None:
        """Discards the time up to the next call, as something other than steps runs."""
        self._last = None

    def is_first(self, digest: str) -> bool:
        """Whether the next call is the first with this selection."""
        return digest != self._digest

    def launched(self, digest: str, steps: int) -> None:
        """Notes that a call of this many steps has ended."""
        now = time.perf_counter()
        if self.is_first(digest):  # this call was traced
            self._digest, self._last = digest, None
            self._seconds.clear()
        if self._last is not None:
            self._seconds.append((now - self._last) / steps)
        self._last = now

    def median(self, digest: str) -> float | None:
        """The median seconds of a step with this selection; None if there was none."""
        if digest != self._digest or not self._seconds:
            return None
        return statistics.median(self._seconds)

    def steady(self, digest: str) -> float | None:
        """The median, unless other programs disturb the steps: the quartiles are close."""
        if digest != self._digest or len(self._seconds) < LEAST_LAUNCHES:
            return None
        first, median, third = statistics.quantiles(self._seconds, n=4, method="inclusive")
        return median if third <= first * (1 + MOST_SPREAD) else None
