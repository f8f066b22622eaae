"""Runs work on rank 0 while the other ranks wait, however long it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ooodist.engines.base import Engine

T = TypeVar("T")

BEAT_SECONDS = 0.5  # without news from rank 0, the others would think that it is lost
_BUSY, _DONE = "busy", "done"


def on_rank_0(engine: Engine | None, work: Callable[[], T]) -> T | None:
    """What ``work`` returns on rank 0, and None on the others, which wait for it.

    All ranks call it. An error of ``work`` is raised on rank 0 only, after the others have stopped
    waiting: let all ranks learn of it, as with ``engine.agreed()``.
    """
    if engine is None or engine.size == 1:
        return work()
    if engine.rank != 0:
        while engine.broadcast_text("") == _BUSY:
            pass
        return None
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="ooodist rank 0")
    thread.start()
    while thread.is_alive():
        thread.join(BEAT_SECONDS)
        if thread.is_alive():
            engine.broadcast_text(_BUSY)
    engine.broadcast_text(_DONE)
    if errors:
        raise errors[0]
    return results[0]
