"""Records steps of a training: what data parallel training and pipelines share of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import keras

from ooodist.errors import UserError
from ooodist.report.chart import Chart
from ooodist.report.perfetto import write_perfetto

logger = logging.getLogger("ooodist")

FILE_NAME = "trace.json.gz"


@dataclass(frozen=True)
class Comparison:
    """A step, predicted and measured.

    Attributes:
        plan: the plan or schedule, by its name.
        predicted_seconds, measured_seconds: seconds of a step.
        shares: how its time was used, in words.
        note: on how it was measured; may be empty.
    """

    plan: str
    predicted_seconds: float
    measured_seconds: float
    shares: str
    note: str = ""

    @property
    def error(self) -> float:
        """The relative error of the prediction; negative if it is too low."""
        return self.predicted_seconds / self.measured_seconds - 1

    def __str__(self) -> str:
        return (
            f"{self.plan}: predicted {self.predicted_seconds * 1e3:.1f} ms a step, measured "
            f"{self.measured_seconds * 1e3:.1f} ms{self.note} (error {self.error:+.1%}); "
            f"{self.shares}"
        )


class StepTrace(keras.callbacks.Callback):
    """Records some steps of a model that ooodist trains, once it has warmed up.

    Args:
        output: the folder for ``trace.json.gz``; made if needed.
        num_steps: how many steps to record.

    Attributes:
        comparison: predicted and measured; None until it is known, without a plan, and always on
            ranks other than 0.

    Raises:
        UserError: ``num_steps`` is less than 1.
    """

    def __init__(self, output: Path, num_steps: int) -> None:
        super().__init__()
        if num_steps < 1:
            raise UserError(f"report.trace is {num_steps}; record at least 1 step, or set it to 0")
        self.comparison: Comparison | None = None
        self._path = Path(output) / FILE_NAME
        self._num_steps = num_steps
        self._is_finished = False

    def _write(self, charts: Sequence[Chart]) -> None:
        """Writes the file. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_perfetto(charts, self._path)

    def _warn_of_nothing(self, ran: str) -> None:
        logger.warning(
            "trace: nothing was recorded: the training ran %s; train longer, or set report.trace "
            "to 0",
            ran,
        )
