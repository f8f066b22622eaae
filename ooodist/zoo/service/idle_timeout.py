"""A limit on how long a call may stall, independent of its total duration."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class IdleTimeout:
    """Calls ``cancel`` once a call has made no progress for some seconds.

    gRPC can only limit the duration of a whole call, and how long a large file takes is not known
    in advance. So this limits the time from one message to the next::

        with IdleTimeout(30.0, call.cancel) as watch:
            for message in call:
                watch.moved()

    Attributes:
        expired: whether it has called ``cancel``.
    """

    def __init__(self, seconds: float, cancel: Callable[[], object]) -> None:
        self.expired = False
        self._seconds = seconds
        self._cancel = cancel
        self._until = time.monotonic() + seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ooodist-zoo-watch", daemon=True)

    def moved(self, more_seconds: float = 0.0) -> None:
        """Restarts the timer, with ``more_seconds`` on top for the next message."""
        self._until = time.monotonic() + self._seconds + more_seconds

    def __enter__(self) -> IdleTimeout:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(max(0.0, self._until - time.monotonic())):
            if time.monotonic() >= self._until:
                self.expired = True
                self._cancel()
                return
