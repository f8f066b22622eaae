"""How long steps take with the present selection."""

from __future__ import annotations

import statistics
import time
from collections import deque

TIMED_LAUNCHES = 100  # the latest, of which the median counts


class StepMeter:
    """From launch to launch."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=TIMED_LAUNCHES)
        self._digest = ""
        self._last: float | None = None

    def interrupted(self) -> None:
        """Something else than steps comes next."""
        self._last = None

    def launched(self, digest: str, steps: int) -> None:
        """A launch of so many steps has ended."""
        now = time.perf_counter()
        if digest != self._digest:  # this launch was traced
            self._digest, self._last = digest, None
            self._seconds.clear()
        if self._last is not None:
            self._seconds.append((now - self._last) / steps)
        self._last = now

    def median(self, digest: str) -> float | None:
        """Seconds of a step with this selection; None if there was none."""
        if digest != self._digest or not self._seconds:
            return None
        return statistics.median(self._seconds)
