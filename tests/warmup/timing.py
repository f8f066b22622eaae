"""How long something takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def fastest(runs: int, call: Callable[[], object]) -> float:
    """Seconds of processor time: others may use the processor, too."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)
