"""Writes what operators watch to a file, in the text format of Prometheus.

::

    ooodist_step{job="digits",engine="horovod"} 1250
    ooodist_samples_per_second{job="digits",engine="horovod"} 3107.2

The textfile collector of node_exporter reads such files from a folder, so nothing here listens.
Rank 0 writes for all ranks. A job that stands still no longer changes ``ooodist_written_seconds``,
which an alert can look at.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import keras

from ooodist.errors import UserError
from ooodist.job.reporting.speeds import Speeds

SECONDS_BETWEEN_FILES = 5.0
_HELP = {
    "epoch": ("gauge", "Epoch that is trained, from 1."),
    "epochs": ("gauge", "Epochs of the whole run."),
    "step": ("gauge", "Steps of the whole run that are done."),
    "step_seconds": ("gauge", "Median seconds of a step, of the last ones."),
    "samples_per_second": ("gauge", "Samples of all workers together."),
    "workers": ("gauge", "Processes that train."),
    "exchange_seconds": ("gauge", "Seconds of a step with exchanges in flight, as recorded once."),
    "exchange_hidden_share": ("gauge", "Share of these behind computation, 0 to 1."),
    "steps_left_out_total": ("counter", "Steps left out as gradients were not finite."),
    "restarts_total": ("counter", "How often the launcher has started this job again."),
    "written_seconds": ("gauge", "When this was written, in Unix seconds."),
    "log": ("gauge", "The loss and metrics of the epoch so far, and of validation."),
}


class WriteMetrics(keras.callbacks.Callback):
    """Writes the file every few seconds and at the end of each epoch.

    Args:
        file: is replaced each time; its folder is made if it is missing.
        speeds: of the job.
        labels: of each value.
        workers: their number.
        epochs, steps_per_epoch: totals of the whole run.

    Raises:
        UserError: while training, if the file cannot be written.
    """

    def __init__(
        self,
        file: Path,
        speeds: Speeds,
        *,
        labels: dict[str, str],
        workers: int,
        epochs: int,
        steps_per_epoch: int,
    ) -> None:
        super().__init__()
        self._file = file
        self._speeds = speeds
        self._labels = labels
        self._steps_per_epoch = steps_per_epoch
        restarts = os.environ.get("OOODIST_RESTART", "0")
        self._fixed = {
            "epochs": float(epochs),
            "workers": float(workers),
            "restarts_total": float(restarts) if restarts.isdecimal() else 0.0,
        }
        self._epoch = 0
        self._written = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if time.monotonic() - self._written >= SECONDS_BETWEEN_FILES:
            # Only here, not after every call: reading the logs waits for the device.
            self._write(batch + 1, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._write(self._steps_per_epoch, logs)

    def _write(self, step: int, logs: Any) -> None:
        values = self._fixed | self._speeds.measured()
        values |= {
            "epoch": self._epoch + 1.0,
            "step": float(self._epoch * self._steps_per_epoch + step),
            "steps_left_out_total": float(self.model.ooodist.strategy.watch.num_skipped),
            "written_seconds": time.time(),
        }
        lines = []
        for name, (kind, text) in _HELP.items():
            entries: list[tuple[dict[str, str], float]] = (
                [({}, values[name])] if name in values else []
            )
            if name == "log":
                entries = [({"name": key}, float(value)) for key, value in (logs or {}).items()]
            if entries:
                lines += [f"# HELP ooodist_{name} {text}", f"# TYPE ooodist_{name} {kind}"]
            lines += [
                f"ooodist_{name}{_labels(self._labels | more)} {_number(value)}"
                for more, value in entries
            ]
        # Not by util.replacing: collectors read every file that ends with .prom, and nobody needs
        # to wait until it is on disk.
        temporary = self._file.with_name(f".{self._file.name}.new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
            os.replace(temporary, self._file)
        except OSError as error:
            raise UserError(
                f"report.metrics is {self._file}, which cannot be written: {error}; give another "
                "file, or leave it out"
            ) from error
        self._written = time.monotonic()


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"


def _labels(labels: dict[str, str]) -> str:
    escaped = {
        name: text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        for name, text in labels.items()
    }
    return "{" + ",".join(f'{name}="{text}"' for name, text in escaped.items()) + "}"
