"""Messages between the ranks of a pipeline, transferred while TensorFlow computes.

A large message makes progress only while its sender and its receiver are inside MPI. So one thread
of each rank does nothing but poll MPI::

    compute   | F0        | F1        |              the thread sleeps while nothing is in transit
    thread      recv -----> send F0 -->

Receives are posted before their messages are needed, so that each message finds a receive buffer.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ooodist.engines.priority import let_come_first
from ooodist.util.patience import Patience

if TYPE_CHECKING:
    from ooodist.engines.communicator import Communicator, Transfer

# Between two polls of the messages in transit; each takes some 10 us of a core.
POLL_SECONDS = 100e-6  # while the rank waits for a message
PATIENT_POLL_SECONDS = 1e-3  # while it computes
_END, _WAKE = object(), object()  # control items for the thread, among the messages
NICENESS = -10  # of the thread, where the system allows it
FAILURE_SECONDS = 0.1  # between two checks of whether the thread has failed


@dataclass
class Message:
    """Arrays in transit.

    Attributes:
        name: the action that sends or waits for it, as ``2RECV_F0``; for error messages.
        failing: what has not happened if it does not complete; for error messages.
        arrays: NumPy arrays, or other memory that MPI takes; received data is written into them.
        start: starts the transfer.
        not_before: held back until this time of ``time.monotonic()``, in seconds.
        transfer: the transfer, once started.
        began: when it was started, as ``time.perf_counter()``.
        ended: when a poll found that it had completed; while the rank computes, up to a millisecond
            later than it had.
        done: set when it has completed.
    """

    name: str
    failing: str
    arrays: Sequence[Any]
    start: Callable[[], Transfer]
    not_before: float = 0.0
    transfer: Transfer | None = None
    began: float = 0.0
    ended: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        """Starts the transfer."""
        self.began = time.perf_counter()
        self.transfer = self.start()

    def look(self) -> None:
        """Notes whether it has completed; MPI makes progress meanwhile."""
        if self.transfer is not None and self.transfer.is_complete():
            self.ended = time.perf_counter()
            self.done.set()


class Transport:
    """Sends and receives in the background; must be closed at the end.

    Args:
        communicator: of the ranks of the pipeline; not used by anybody else.
        patience: for how long a rank waits for a message.

    Attributes:
        communicator: as given.

    Raises:
        UserError: MPI was started without MPI_THREAD_MULTIPLE.
    """

    def __init__(self, communicator: Communicator, patience: Patience) -> None:
        communicator.check_threads()
        self.communicator = communicator
        self._patience = patience
        self._posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sent: list[Message] = []
        self._link_free: dict[int, float] = {}
        self._waits = False  # whether the rank waits for a message
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._move, name="transport", daemon=True)
        self._thread.start()
        let_come_first({cast(int, self._thread.native_id)}, NICENESS)

    @property
    def rank(self) -> int:
        """This process's rank in the communicator."""
        return self.communicator.rank

    @property
    def largest_tag(self) -> int:
        """The largest tag of a message."""
        return self.communicator.largest_tag

    def receive(self, name: str, peer: int, tag: int, arrays: Sequence[Any]) -> Message:
        """Begins to receive into the arrays; returns at once."""
        start = partial(self.communicator.receive, arrays, peer, tag)
        return self._post(Message(name, f"the message is not sent by rank {peer}", arrays, start))

    def send(
        self,
        name: str,
        peer: int,
        tag: int,
        arrays: Sequence[Any],
        *,
        link_seconds: float = 0.0,
    ) -> Message:
        """Begins to send the arrays, which must not be changed until it is done.

        Args:
            name: the action.
            peer: the receiving rank.
            tag: identifies the message; with the same two ranks and tag, messages keep their order.
            arrays: what is sent.
            link_seconds: transfer time on an emulated link, which carries one message at a time.
        """
        failing = f"the message is not taken by rank {peer}"
        start = partial(self.communicator.send, arrays, peer, tag)
        message = Message(name, failing, arrays, start)
        if link_seconds:
            free = max(time.monotonic(), self._link_free.get(peer, 0.0)) + link_seconds
            self._link_free[peer] = message.not_before = free
        self._sent = [message for message in self._sent if not message.done.is_set()]
        self._sent.append(message)
        return self._post(message)

    def sum(
        self, name: str, communicator: Communicator, array: np.ndarray, root: int | None = None
    ) -> Message:
        """Begins to sum an array over the ranks of a communicator, in place.

        All of them begin their sums and broadcasts in the same order.

        Args:
            name: what is summed.
            communicator: of those that sum.
            array: this rank's; must not be changed until it is done.
            root: the only rank that gets the sum; None: all do. MPI may add in another order then.
        """
        start = partial(communicator.begin_sum, array, root)
        return self._post(Message(name, _not_all_of(communicator), [array], start))

    def broadcast(
        self, name: str, communicator: Communicator, array: np.ndarray, root: int
    ) -> Message:
        """Begins to send an array from a rank of a communicator to all others, into theirs.

        All of them begin their sums and broadcasts in the same order.
        """
        start = partial(communicator.begin_broadcast, array, root)
        return self._post(Message(name, _not_all_of(communicator), [array], start))

    def wait(self, message: Message) -> float:
        """Waits until the message has been received or sent.

        Returns:
            the seconds that it waited.

        Raises:
            Stalled: it took longer than the timeout.
            Exception: the thread has ended with it: MPI's error for this or an earlier message.
        """
        if message.done.is_set():
            return 0.0
        begin = time.monotonic()
        self._waits = True
        self._posted.put(_WAKE)
        while not message.done.wait(FAILURE_SECONDS):
            if self._failure is not None:
                raise self._failure
            where = f"rank {self.rank} waits at {message.name}"
            self._patience.check(begin, where, message.failing)
        self._waits = False
        return time.monotonic() - begin

    def flush(self) -> None:
        """Waits until everything that was sent is done. Raises Stalled."""
        for message in self._sent:
            self.wait(message)
        self._sent.clear()

    def close(self) -> None:
        """Ends the thread; messages in transit are lost."""
        self._posted.put(_END)
        self._thread.join()

    def _post(self, message: Message) -> Message:
        # Not started by the thread, which may have to wait for its turn: so it is sent at once.
        if not message.not_before:
            message.begin()
        self._posted.put(message)
        return message

    def _move(self) -> None:
        held: list[Message] = []
        moving: list[Message] = []
        try:
            while True:
                for item in self._posts(self._pause(moving, held)):
                    if item is _END:
                        return
                    if item is not _WAKE:
                        held.append(item)
                now = time.monotonic()
                due = [message for message in held if message.not_before <= now]
                held = [message for message in held if message.not_before > now]
                for message in due:
                    if message.not_before:
                        message.begin()
                moving += due
                for message in moving:
                    message.look()
                moving = [message for message in moving if not message.done.is_set()]
        except Exception as error:  # of any kind: wait() raises it
            self._failure = error

    def _pause(self, moving: Sequence[Any], held: Sequence[Message]) -> float | None:
        """The seconds to the next poll; None to sleep until something is posted."""
        pauses = [max(0.0, message.not_before - time.monotonic()) for message in held]
        if moving:
            pauses.append(POLL_SECONDS if self._waits else PATIENT_POLL_SECONDS)
        return min(pauses, default=None)

    def _posts(self, seconds: float | None) -> list[Any]:
        """Posted items, waiting up to this many seconds for the first (None: forever)."""
        found: list[Any] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._posted.get(timeout=seconds))
            while True:
                found.append(self._posted.get_nowait())
        return found


def _not_all_of(communicator: Communicator) -> str:
    return f"not all of the {communicator.size} ranks have come to it"
