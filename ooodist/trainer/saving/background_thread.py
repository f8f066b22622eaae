"""Runs one function at a time in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundThread:
    """Runs a function in a thread beside the training.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None], ended: Callable[[], None]) -> None:
        """Starts ``work``; ``ended`` is called in the thread at its end, also if it has failed."""
        assert self._thread is None

        def run() -> None:
            try:
                work()
            except BaseException as error:  # whoever waits for it gets it
                self._error = error
            ended()

        # A daemon: where the training fails, nobody waits for it.
        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def settle(self, seconds: float) -> None:
        """Waits for a function that is under way, at most so long, before the process ends."""
        if self._thread is not None:
            self._thread.join(seconds)

    def wait(self) -> None:
        """Waits until the function has ended. Raises what it raised."""
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
