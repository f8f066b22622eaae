"""For how long a job may stand still, and what counts as progress between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable

from ooodist.errors import UserError

LEAST_SECONDS = 60.0
TIMES_LONGEST = 10


class Stalled(UserError):
    """What this rank waits for has not come in time."""


class Patience:
    """A limit in seconds: the user's, or one that follows what steps of this job have taken.

    Args:
        fixed: the limit, if the user has given one.
        expected: of a step, in seconds, as long as none has ended; it counts where none is fixed.
    """

    def __init__(self, fixed: float | None = None, expected: float = 0.0) -> None:
        self._fixed = fixed
        self._first = expected
        self._longest = 0.0

    @property
    def seconds(self) -> float:
        """The limit; if none is fixed, ten times the longest step so far, and 60 s at least."""
        if self._fixed is not None:
            return self._fixed
        return max(LEAST_SECONDS, TIMES_LONGEST * (self._longest or self._first))

    def took(self, seconds: float, *, is_first: bool = False) -> None:
        """Notes how long a step has taken, or a pause between two, that has ended well.

        Args:
            seconds: its time; no more than the limit counts, as it may have been stopped (SIGSTOP).
            is_first: it was traced, too; it counts until another has ended.
        """
        if is_first:
            self._first = seconds
        else:
            self._longest = max(self._longest, min(seconds, self.seconds))

    def check(self, began: float, where: str, missing: str) -> None:
        """Raises Stalled if a wait that ``began`` then, by time.monotonic(), exceeds the limit."""
        waited = time.monotonic() - began
        if waited > self.seconds:
            raise Stalled(
                f"{where} since {waited:.0f} s: {missing}; one may have died or be stuck. If a "
                f"step may take that long, raise timeout ({self})"
            )

    def __str__(self) -> str:
        if self._fixed is not None:
            return f"{self._fixed:g} s"
        rule = f"{TIMES_LONGEST} times the longest step so far, {LEAST_SECONDS:g} s at least"
        return f"{self.seconds:.0f} s: {rule}"


_listener: Callable[[], None] | None = None


def moved() -> None:
    """Called when bytes of an exchange outside of a step have arrived: that is progress."""
    if _listener is not None:
        _listener()


def when_moved(listener: Callable[[], None] | None) -> None:
    """Sets what :func:`moved` calls, in the thread that exchanges; None: nothing."""
    global _listener
    _listener = listener
