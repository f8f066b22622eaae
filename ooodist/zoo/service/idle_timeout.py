"""A limit on how long a call may stand still, however long it takes as a whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class IdleTimeout:
    """Calls ``cancel`` once nothing has moved for some seconds.

    A call of gRPC can only be given seconds for the whole of it, and nobody knows how long it takes
    to send a large file. So what is limited is the time from one message to the next::

        with IdleTimeout(30.0, call.cancel) as watch:
            for message in call:
                watch.moved()

    Attributes:
        expired: whether it has called.
    """

    def __init__(self, seconds: float, cancel: Callable[[], object]) -> None:
        self.expired = False
        self._seconds = seconds
        self._cancel = cancel
        self._until = time.monotonic() + seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ooodist-zoo-watch", daemon=True)

    def moved(self, more_seconds: float = 0.0) -> None:
        """Starts anew; the next message may take so much longer."""
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
