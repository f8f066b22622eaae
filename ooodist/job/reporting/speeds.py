"""What a job measures of its own speed, for Prometheus and TensorBoard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ooodist.report.data_parallel.trace import Trace
from ooodist.trainer.progress import StepTimer


@dataclass(frozen=True)
class Speeds:
    """Measures the speed of the last steps.

    Attributes:
        timer: a callback that runs before those that ask.
        global_batch: samples of all workers in a step.
        trace: records steps, and so how long exchanges take; None: nobody does.
    """

    timer: StepTimer
    global_batch: int
    trace: Trace | None = None

    def measured(self) -> dict[str, float]:
        """What is known so far: seconds of a step, samples of all workers per second,
        seconds of a step with exchanges in flight, and the share of them behind computation."""
        values: dict[str, float] = {}
        if seconds := self.timer.recent():
            values["step_seconds"] = seconds
            values["samples_per_second"] = self.global_batch / seconds
        if self.trace is not None and (recorded := self.trace.summary) is not None:
            values["exchange_seconds"] = recorded.exchange_seconds
            if recorded.exchange_seconds:  # else there is nothing to hide
                values["exchange_hidden_share"] = recorded.hidden_share
        return values


class WriteSpeeds(keras.callbacks.Callback):
    """Writes the speeds of each epoch for TensorBoard, beside what Keras's TensorBoard writes."""

    def __init__(self, folder: Path, speeds: Speeds) -> None:
        super().__init__()
        self._writer = tf.summary.create_file_writer(str(folder / "train"))
        self._speeds = speeds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        with self._writer.as_default(epoch):
            for name, value in self._speeds.measured().items():
                tf.summary.scalar(f"speed/{name}", value)

    def on_train_end(self, logs: Any = None) -> None:
        self._writer.close()
