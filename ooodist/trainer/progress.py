"""Prints rank 0's progress while training: where it is, how fast, how much longer.

    epoch  3/10 step   7/11 | loss 0.3312 accuracy 0.9023 | 41.2 ms/step 3107 samples/s | 0:03 left

On a terminal this is one line that is overwritten; elsewhere (a log file, the output of a
launcher) a new line every few seconds. Each epoch ends with a line that stays.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import deque
from typing import Any, TextIO

import keras

RECENT_LAUNCHES = 50
SECONDS_BETWEEN_UPDATES = 0.1  # on a terminal
SECONDS_BETWEEN_LINES = 5.0  # elsewhere


class StepTimer(keras.callbacks.Callback):
    """Measures the time of steps. A call counts from the end of the previous one, so that fetching
    data and other callbacks count, too; the first call of each epoch is left out, as its time would
    include what happens between epochs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._all: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT_LAUNCHES)
        self._last: tuple[int, float] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._last = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        fit = self.model.ooodist
        if fit.steps_ahead or fit.is_catching_up:  # the same call, or one that did nothing
            return
        now = time.perf_counter()
        if self._last is not None and batch > self._last[0]:
            seconds = (now - self._last[1]) / (batch - self._last[0])
            self._all.append(seconds)
            self._recent.append(seconds)
        self._last = (batch, now)

    def recent(self) -> float | None:
        """The median seconds of a step over the last calls; None before the first."""
        return statistics.median(self._recent) if self._recent else None

    def median(self) -> float | None:
        """The median seconds of a step over the whole run; None before the first."""
        return statistics.median(self._all) if self._all else None


class Progress(keras.callbacks.Callback):
    """Prints the progress of rank 0.

    Args:
        timer: a callback that runs before this one.
        global_batch: samples of all workers in a step.
        epochs, steps_per_epoch: totals of the whole run.
        stream: where to print; stdout by default.
    """

    def __init__(
        self,
        timer: StepTimer,
        *,
        global_batch: int,
        epochs: int,
        steps_per_epoch: int,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._timer = timer
        self._global_batch = global_batch
        self._epochs = epochs
        self._steps = steps_per_epoch
        self._stream = stream or sys.stdout
        # mpirun gives its processes terminals, but puts the rank before each line.
        self._is_terminal = self._stream.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ
        self._pause = SECONDS_BETWEEN_UPDATES if self._is_terminal else SECONDS_BETWEEN_LINES
        self._epoch = 0
        self._after_last_step = 0.0
        self._pause_seconds = 0.0  # after the last step of the last epoch: evaluation, saving
        self._written = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._written = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._after_last_step = time.monotonic()
        if self._after_last_step - self._written >= self._pause:
            # Only here, not after every call: reading the logs waits for the device.
            self._write(self._line(batch + 1, logs), is_last=False)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._pause_seconds = time.monotonic() - self._after_last_step
        self._write(self._line(self._steps, logs), is_last=True)

    def _line(self, step: int, logs: Any) -> str:
        epoch_width, step_width = len(str(self._epochs)), len(str(self._steps))
        parts = [
            f"epoch {self._epoch + 1:{epoch_width}}/{self._epochs} "
            f"step {step:{step_width}}/{self._steps}",
            " ".join(f"{name} {float(value):.4f}" for name, value in (logs or {}).items()),
        ]
        seconds = self._timer.recent()
        if seconds:
            speed = self._global_batch / seconds
            parts.append(f"{seconds * 1000:.1f} ms/step {speed:.0f} samples/s")
            parts.append(f"{duration(self._seconds_left(step, seconds))} left")
        return " | ".join(part for part in parts if part)

    def _seconds_left(self, step: int, step_seconds: float) -> float:
        epochs = self._epochs - self._epoch - 1
        steps = self._steps - step + self._steps * epochs
        return step_seconds * steps + self._pause_seconds * epochs

    def _write(self, line: str, is_last: bool) -> None:
        self._written = time.monotonic()
        if self._is_terminal:
            clear_to_end = "\x1b[K"
            self._stream.write(f"\r{line}{clear_to_end}" + ("\n" if is_last else ""))
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()


def duration(seconds: float) -> str:
    """Formats seconds: ``75`` as ``1:15``, ``3675`` as ``1:01:15``."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
