"""How long something takes, on a machine that may be slow or busy with other things."""

from __future__ import annotations

import time
from collections.abc import Callable

# Of `_loop` on the machine that limits were set on.
LOOP_SECONDS = 0.0053


def fastest(call: Callable[[], object], runs: int = 1) -> float:
    """Seconds of processor time, as on the machine that limits were set on.

    A loop is timed before each run and after the last: where it takes longer than it did there,
    because the processor is slower or its other thread is in use, the runs count for less.
    """
    loops, times = [loop_seconds()], []
    for _ in range(runs):
        times.append(_seconds(call))
        loops.append(loop_seconds())
    return min(times) / max(1.0, min(loops) / LOOP_SECONDS)


def loop_seconds() -> float:
    """Seconds of processor time that the loop takes now."""
    return _seconds(_loop)


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _loop() -> None:
    """What a search does: small numbers, lists and dictionaries."""
    sums: dict[int, float] = {}
    heap = [(number * 7919) % 10007 for number in range(20000)]
    for number in heap:
        sums[number % 512] = sums.get(number % 512, 0.0) + number * 0.5
    sorted(heap)
