"""What workers of jobs share: checks that all ranks carry out together, by name, and data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

import ooodist
from ooodist.engines.base import Engine

_CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """The function can be run by its name."""
    _CHECKS[function.__name__] = function
    return function


def run(engine: Engine, names: Sequence[str]) -> None:
    """Runs these checks, or all for ``all``, and ends the engine; rank 0 prints what has passed."""
    for name in _CHECKS if list(names) == ["all"] else names:
        started = time.perf_counter()
        _CHECKS[name]()
        engine.barrier()
        if engine.rank == 0:
            print(f"passed {name} ({time.perf_counter() - started:.1f} s)", flush=True)
    ooodist.shutdown()


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of noise, of two classes."""
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(count, 8, 8, 3)).astype(np.float32)
    return x, (x.mean(axis=(1, 2)) @ np.ones((3,)) > 0).astype(np.int32)
