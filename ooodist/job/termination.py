"""SIGTERM: a checkpoint and a clean end on all ranks, in time before somebody sends SIGKILL.

=================================  ====================================================
where this rank is                 what it does
=================================  ====================================================
before the end of the first call   ends at once: nothing was trained that could be lost
training                           tells all ranks, which save and end after one step
behind the training                ends at once: all checkpoints are written
=================================  ====================================================

It also ends at once with the second SIGTERM, and where the others take too long to agree. The
others then end as they do when a rank has died. A call into TensorFlow may keep Python from running
a handler for long; so a thread waits for what Python writes when a signal comes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import keras

from ooodist import engines
from ooodist.step.notices import Notice, Notices
from ooodist.util.program import TERMINATED_CODE

SECONDS_TO_END = 25.0  # of the 30 s that schedulers commonly give


class Termination:
    """Waits for SIGTERM in a job's process."""

    def __init__(self) -> None:
        self._rank: int | None = None  # for messages
        self._notices: Notices | None = None  # while ranks train, and can agree
        self._late: threading.Timer | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Handles SIGTERM in this block, which the main thread enters."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        handler_before = signal.signal(signal.SIGTERM, _do_nothing)
        writer_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._wait, args=(reader,), name="SIGTERM", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(writer_before)
            signal.signal(signal.SIGTERM, handler_before)
            os.close(writer)  # which ends the thread
            if self._late is not None:
                self._late.cancel()

    def started(self, rank: int) -> None:
        """Handles SIGTERM again, now that this process is a rank: TensorFlow's collectives take the
        signal for themselves when they start, and then drop it."""
        self._rank = rank
        signal.signal(signal.SIGTERM, _do_nothing)

    def training(self, notices: Notices) -> None:
        """From now on, until :meth:`trained`, ranks agree on the step after which they end."""
        self._notices = notices

    def trained(self) -> None:
        """From now on a rank may end alone."""
        self._notices = None

    def _wait(self, reader: int) -> None:
        with open(reader, "rb", buffering=0) as signals:
            while received := signals.read(1):
                if received[0] != signal.SIGTERM:
                    continue
                notices = self._notices
                if self._late is not None:
                    self._end("a second SIGTERM: ends at once")
                if notices is None:
                    self._end("SIGTERM: ends; no step is lost")
                self._say("SIGTERM: all ranks end after the next step")
                self._late = threading.Timer(SECONDS_TO_END, self._end, [_LATE])
                self._late.daemon = True
                self._late.start()
                notices.tell(Notice.STOP, 1)

    def _end(self, what: str) -> NoReturn:
        self._say(what)
        engines.abort(TERMINATED_CODE)

    def _say(self, what: str) -> None:
        who = "" if self._rank is None else f"rank {self._rank}: "
        sys.stderr.write(f"ooodist: {who}{what}\n")
        sys.stderr.flush()


def _do_nothing(*_: object) -> None:
    """Handles a signal of which the thread is told."""


_LATE = (
    f"SIGTERM: no checkpoint within {SECONDS_TO_END:g} s, as a step, an evaluation or the writing "
    "takes longer, or another rank is gone; ends at once: go on from the newest with --resume"
)


class AgreeOnTheEnd(keras.callbacks.Callback):
    """Tells when ranks can agree on where they end: from the end of the first call on.

    Args:
        termination: is told.
        notices: by which they agree.
    """

    def __init__(self, termination: Termination, notices: Notices) -> None:
        super().__init__()
        self._termination = termination
        self._notices = notices

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.ooodist.call_has_trained:
            self._termination.training(self._notices)
