"""Messages between the ranks of a pipeline over MPI, which move while TensorFlow computes.

A large message makes progress only while its sender and its receiver are inside MPI. So one thread
of each rank does nothing else than to be there::

    compute   | F0        | F1        |              the thread sleeps while nothing is on its way
    thread      recv -----> send F0 -->

Receives are posted before their messages are needed, so that what is sent has a place to go to.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

from ooodist.errors import UserError

POLL_SECONDS = 200e-6  # between two looks at what is on its way; each takes some 10 us of a core
FAILURE_SECONDS = 0.1  # between two looks at whether the thread has failed


class Stalled(UserError):
    """A message did not come, or was not taken, within the limit."""


@dataclass
class Message:
    """Arrays on their way from one rank to another.

    Attributes:
        name: of the action that sends or waits for it, as ``2RECV_F0``; for people.
        peer: the other rank.
        tag: by which the two know the message.
        arrays: of one rank's order; what is received is written into them.
        is_sent: from here to there.
    """

    name: str
    peer: int
    tag: int
    arrays: Sequence[np.ndarray]
    is_sent: bool
    done: threading.Event = field(default_factory=threading.Event)


class Transport:
    """Sends and receives in the background. To be closed when all is done.

    Args:
        communicator: of the ranks of the pipeline; not used by anybody else.
        stall_limit: seconds that anybody waits for a message.

    Raises:
        UserError: MPI does not let several threads in.
    """

    def __init__(self, communicator: MPI.Intracomm, stall_limit: float) -> None:
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UserError(
                "this MPI was started without support for several threads (MPI_THREAD_MULTIPLE), "
                "which messages beside a computation need; use an MPI that has it, as Debian's "
                "Open MPI, and leave mpi4py.rc.thread_level as it is"
            )
        self._communicator = communicator
        self._stall_limit = stall_limit
        self._posted: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._sent: list[Message] = []
        self._failure: MPI.Exception | None = None
        self._thread = threading.Thread(target=self._move, name="transport", daemon=True)
        self._thread.start()

    @property
    def rank(self) -> int:
        """Of this process among those of the communicator."""
        return int(self._communicator.rank)

    def receive(self, name: str, peer: int, tag: int, arrays: Sequence[np.ndarray]) -> Message:
        """Begins to receive into the arrays; returns at once."""
        return self._post(Message(name, peer, tag, arrays, is_sent=False))

    def send(self, name: str, peer: int, tag: int, arrays: Sequence[np.ndarray]) -> Message:
        """Begins to send the arrays, which must stay as they are until it is done."""
        self._sent = [message for message in self._sent if not message.done.is_set()]
        self._sent.append(self._post(Message(name, peer, tag, arrays, is_sent=True)))
        return self._sent[-1]

    def wait(self, message: Message) -> float:
        """Returns when the message is there, or taken.

        Returns:
            seconds that were waited.

        Raises:
            Stalled: it took longer than the limit.
            MPI.Exception: MPI refused this or an earlier message.
        """
        begin = time.monotonic()
        while not message.done.wait(FAILURE_SECONDS):
            if self._failure is not None:
                raise self._failure
            waited = time.monotonic() - begin
            if waited > self._stall_limit:
                what = "taken by" if message.is_sent else "sent by"
                raise Stalled(
                    f"rank {self.rank} waits at {message.name} since {waited:.0f} s: the message "
                    f"is not {what} rank {message.peer}, which may have died or be stuck; if an "
                    f"action may take that long, raise stall_limit ({self._stall_limit:g} s)"
                )
        return time.monotonic() - begin

    def flush(self) -> None:
        """Waits until all that was sent is taken. Raises Stalled."""
        for message in self._sent:
            self.wait(message)
        self._sent.clear()

    def close(self) -> None:
        """Ends the thread; what is still on its way is lost."""
        self._posted.put(None)
        self._thread.join()

    def _post(self, message: Message) -> Message:
        self._posted.put(message)
        return message

    def _move(self) -> None:
        moving: list[tuple[Message, list[MPI.Request]]] = []
        try:
            while True:
                for message in self._new(wait=not moving):
                    if message is None:
                        return
                    moving.append((message, self._requests(message)))
                still = []
                for message, requests in moving:
                    if MPI.Request.Testall(requests):
                        message.done.set()
                    else:
                        still.append((message, requests))
                moving = still
                if moving:
                    time.sleep(POLL_SECONDS)
        except MPI.Exception as error:  # shown by whoever waits
            self._failure = error

    def _new(self, *, wait: bool) -> list[Message | None]:
        """What was posted meanwhile."""
        found = [self._posted.get()] if wait else []
        while True:
            try:
                found.append(self._posted.get_nowait())
            except queue.Empty:
                return found

    def _requests(self, message: Message) -> list[MPI.Request]:
        begin = self._communicator.Isend if message.is_sent else self._communicator.Irecv
        # Of one pair of ranks and one tag MPI keeps the order.
        return [begin(array, message.peer, message.tag) for array in message.arrays]
