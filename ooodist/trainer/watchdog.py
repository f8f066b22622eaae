"""Ends this process when training makes no progress.

An engine may wait for a dead worker forever (BytePS does), inside a TensorFlow call that no Python
signal interrupts. So a thread watches, writes down where all threads are, and exits the process;
the launcher ends the others.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keras

from ooodist.util.patience import Patience, when_moved

FIRST_TIME_FACTOR = 10  # tracing and the first call may take this many times the limit
EXIT_CODE = 1
# Others that stand still find it a little later, and write their stacks before they are ended.
LINGER_SECONDS = 1.0
STACKS_NAME = "stacks-rank-{rank}.txt"


_watching: Watchdog | None = None  # the one that has been started in this process
_ended = ("the start", time.monotonic())  # place and last progress of the one that was stopped last


def expect_longer(what: str) -> None:
    """Allows ten times the limit for what has begun now, up to the end of the next call.

    For occasional work between two calls, on all ranks: an elastic renewal, which probes, plans and
    traces, or a checkpoint that is saved to a slow file system.

    Args:
        what: what began, for the message.
    """
    if _watching is not None:
        _watching.progress(what, FIRST_TIME_FACTOR)


def expect_usual(what: str) -> None:
    """Restores the usual limit, as what took longer has ended.

    Args:
        what: what ended, for the message.
    """
    if _watching is not None:
        _watching.progress(what)


def place_in_training() -> str:
    """How far the training of this process has come, for messages."""
    return _ended[0] if _watching is None else _watching.place


def seconds_without_progress() -> float:
    """How long ago the training of this process has last moved."""
    return time.monotonic() - (_ended[1] if _watching is None else _watching.last)


class Watchdog(keras.callbacks.Callback):
    """Ends the process if no call or evaluation step ends in time, and nothing is exchanged.

    The first call and the first evaluation are traced and may take ten times as long; so may what
    :func:`expect_longer` has announced.

    Args:
        patience: how long they may take; it is told how long they have taken.
        rank, engine: for the message.
        times: limits are so many times longer.
        folder: where the stacks of all threads are written when the process is ended, to a file for
            each rank; None: they are not.

    Attributes:
        place: how far the training has come, in words.
        last: when it has last moved, by time.monotonic().
    """

    def __init__(
        self,
        patience: Patience,
        rank: int,
        engine: str,
        folder: Path | None = None,
        *,
        times: int = 1,
    ) -> None:
        super().__init__()
        self._patience = patience
        self._times = times
        self._stacks = None if folder is None else folder / STACKS_NAME.format(rank=rank)
        self._who = f"rank {rank} (engine {engine})"
        self.place = "the start"
        self._epoch = 0
        self._traced: set[str] = set()
        self._factor = FIRST_TIME_FACTOR
        self._began = self.last = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts watching."""
        self.progress("the start", FIRST_TIME_FACTOR)
        when_moved(self.note_exchange)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        global _watching
        _watching = self

    def stop(self) -> None:
        """Stops watching."""
        global _watching, _ended
        _watching, _ended = None, (self.place, self.last)
        when_moved(None)
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def note_exchange(self) -> None:
        """Notes that bytes of an exchange have moved outside of a step."""
        self.last = time.monotonic()

    def progress(self, where: str, factor: int = 1) -> None:
        """Notes where the training is; what follows may take ``factor`` times the limit."""
        now = time.monotonic()
        if self._factor == 1:
            self._patience.took(now - self._began)
        self.place = where
        self._factor = factor
        self._began = self.last = now

    def _watch(self) -> None:
        while not self._stop.wait(min(0.5, self._patience.seconds / 4)):
            waited = time.monotonic() - self.last
            if waited > self._patience.seconds * self._times * self._factor:
                # One write: print() could write the line feed separately, after another rank's
                # line.
                sys.stderr.write(
                    f"ooodist: error: {self._who} has made no progress for {waited:.0f} s "
                    f"since {self.place}; ending it. Another rank may have died or be stuck; "
                    f"if a call may take that long, raise timeout ({self._patience})"
                    f"{self._write_stacks()}\n"
                )
                sys.stderr.flush()
                time.sleep(LINGER_SECONDS)
                os._exit(EXIT_CODE)

    def _write_stacks(self) -> str:
        """Writes the stacks of all threads; returns where they are, for the message."""
        if self._stacks is None:
            return ""
        # By a thread of its own: the disk may be what everybody waits for.
        writer = threading.Thread(target=_dump, args=(self._stacks,), daemon=True)
        writer.start()
        writer.join(LINGER_SECONDS)
        has_written = not writer.is_alive() and self._stacks.is_file()
        return f". Where each of its threads is: {self._stacks}" if has_written else ""

    def _begin(self, what: str, where: str) -> None:
        self.progress(where, 1 if what in self._traced else FIRST_TIME_FACTOR)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch + 1

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin("train", f"epoch {self._epoch}, step {batch + 1} began")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model is None or not self.model.ooodist.is_catching_up:
            if "train" not in self._traced:
                self._patience.took(time.monotonic() - self._began, is_first=True)
            self._traced.add("train")
        self.progress(f"epoch {self._epoch}, step {batch + 1} ended")

    def on_test_begin(self, logs: Any = None) -> None:
        self._begin("test", f"the evaluation after epoch {self._epoch} began")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._begin("test", f"the evaluation after epoch {self._epoch}, step {batch + 1} ended")

    def on_test_end(self, logs: Any = None) -> None:
        # Only now: the last batch may be smaller, and is then traced once more.
        self._traced.add("test")
        self.progress(f"the evaluation after epoch {self._epoch} ended")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.progress(f"epoch {epoch + 1} ended")


def _dump(path: Path) -> None:
    """Writes the stacks of all threads; without a word where it cannot: another message comes."""
    with contextlib.suppress(OSError), path.open("w") as file:
        faulthandler.dump_traceback(file)
