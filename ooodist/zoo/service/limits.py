"""How much of a zoo's service its users may take, each of them and all together.

A call that waits for its client keeps a thread. So there are far more threads than calls that have
something to do at a time, and of those one user gets only a part: a client that opens streams and
says nothing is in nobody's way but its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

CHUNK_BYTES = 2**20  # of a file, that travel in a message
MESSAGE_BYTES = 4 * 2**20  # the most that gRPC takes in at all
LARGEST_BYTES = 2 * 2**30  # of a file, unless the user says otherwise

_REQUEST_BYTES = {"Query": 3 * 2**20, "Register": 2 * CHUNK_BYTES}
_OTHER_REQUEST_BYTES = 2**16


def request_bytes(call: str) -> int:
    """The most bytes that a message to the service may have in a call."""
    return _REQUEST_BYTES.get(call, _OTHER_REQUEST_BYTES)


@dataclass(frozen=True)
class Limits:
    """What a service takes.

    Attributes:
        calls: that may go on at a time; each has a thread.
        calls_of_user: the same, of one user.
        uploads: of these calls.
        uploads_of_user: the same, of one user.
        file_bytes: of a file that may be registered.
        timeout: seconds in which a client must send, or take, its next message of up to 1 MiB.
    """

    calls: int = 256
    calls_of_user: int = 32
    uploads: int = 8
    uploads_of_user: int = 4
    file_bytes: int = LARGEST_BYTES
    timeout: float = 30.0


class BusyError(Exception):
    """There is no place left for a call."""


class Places:
    """Places for things that go on at a time.

    Args:
        what: they are, for the error.
        total: places.
        of_user: places that one user may have.
    """

    def __init__(self, what: str, total: int, of_user: int) -> None:
        self._what = what
        self._total = total
        self._of_user = of_user
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def taken_by(self, user: str) -> Iterator[None]:
        """A place for a user. Raises BusyError, at once, if there is none."""
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
                self._taken -= Counter({user: 1})  # which drops users that have none
