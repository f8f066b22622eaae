"""Limits on what users may take of a zoo's service, each of them and all together.

A call that waits for its client occupies a thread. So there are far more threads than calls that
have work to do at any time, and each user gets only a share of them: a client that opens streams
and stays silent blocks nobody but itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

CHUNK_BYTES = 2**20  # of a file in one message
MESSAGE_BYTES = 4 * 2**20  # the most that gRPC accepts in a message
LARGEST_BYTES = 2 * 2**30  # of a file, by default

_REQUEST_BYTES = {"Query": 3 * 2**20, "Register": 2 * CHUNK_BYTES}
_OTHER_REQUEST_BYTES = 2**16


def request_bytes(call: str) -> int:
    """The most bytes that a request of this call may have."""
    return _REQUEST_BYTES.get(call, _OTHER_REQUEST_BYTES)


@dataclass(frozen=True)
class Limits:
    """The limits of a service.

    Attributes:
        calls: most concurrent calls; each has a thread.
        calls_of_user: most concurrent calls of one user.
        uploads: most concurrent uploads, which also count as calls.
        uploads_of_user: most concurrent uploads of one user.
        file_bytes: largest file that may be registered, in bytes.
        timeout: seconds for a client to send or receive its next message of up to 1 MiB.
        idle: seconds after which a connection without a call is closed, also one that has not yet
            said that it speaks gRPC: each takes one of the service's open files, and no token.
    """

    calls: int = 256
    calls_of_user: int = 32
    uploads: int = 8
    uploads_of_user: int = 4
    file_bytes: int = LARGEST_BYTES
    timeout: float = 30.0
    idle: float = 10.0


class BusyError(Exception):
    """A limit on concurrent calls or uploads is reached."""


class Places:
    """A limited number of places, in total and for each user.

    Args:
        what: what takes the places, in the plural, for the error.
        total: number of places.
        of_user: most places that one user may take.
    """

    def __init__(self, what: str, total: int, of_user: int) -> None:
        self._what = what
        self._total = total
        self._of_user = of_user
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def taken_by(self, user: str) -> Iterator[None]:
        """Takes a place for a user; raises BusyError immediately if there is none."""
        with self._lock:
            if self._taken[user] >= self._of_user:
                raise BusyError(
                    f"{user} has {self._of_user} {self._what} going on, as many as one user may "
                    "have at a time; try again when one has ended"
                )
            if self._taken.total() >= self._total:
                raise BusyError(
                    f"{self._total} {self._what} are going on, as many as there may be at a time; "
                    "try again later"
                )
            self._taken[user] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken -= Counter({user: 1})  # also drops users with no places


class Turns:
    """What takes the processor: each user has one turn at a time, so that others get theirs."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}  # as many as there are tokens

    def of(self, user: str) -> threading.Lock:
        """What to hold while something is computed for a user; never for its network."""
        return self._locks.setdefault(user, threading.Lock())
