"""Keras callbacks of ``python -m ooodist.train``; they run, and decide alike, on every rank."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ooodist.compat.attributes import replaced
from ooodist.compat.keras_deferred import has_value
from ooodist.errors import UserError
from ooodist.step.replicas import is_random_state
from ooodist.util.replacing import replacing

Logs = dict[str, Any] | None
BestWeights = Sequence[np.ndarray | None] | None  # in them, None for what another rank has


class StopOnInvalidLoss(keras.callbacks.Callback):
    """Ends the run with a UserError once the loss is NaN or infinite.

    The loss of a call is read once the next call has begun, so that the host does not wait for an
    accelerator after each call, and at the end of an epoch, before anything is saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0
        self._pending: tuple[int, Any] | None = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._look()
        loss = (logs or {}).get("loss")
        self._pending = None if loss is None else (batch, loss)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._look()

    def _look(self) -> None:
        if self._pending is None:
            return
        batch, loss = self._pending
        self._pending = None
        if not math.isfinite(float(loss)):
            raise UserError(
                f"the loss is {float(loss)} at epoch {self._epoch + 1}, step {batch + 1}; "
                "lower optimizer.learning_rate, set optimizer.global_clipnorm, or look for "
                "values in the data that are not finite"
            )


class SeedEachEpoch(keras.callbacks.Callback):
    """Seeds dropout and other random layers at the start of each epoch, from (seed, rank, epoch).

    Ranks thus draw different numbers, and a resumed run draws those of the uninterrupted one. Seeds
    that were given to layers are replaced, too.
    """

    def __init__(self, seed: int, rank: int) -> None:
        super().__init__()
        self._seed = seed
        self._rank = rank

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        states = filter(is_random_state, self.model.variables)
        for index, state in enumerate(states):
            if has_value(state):  # other ranks of a pipeline have the others
                sequence = np.random.SeedSequence([self._seed, self._rank, epoch, index])
                state.assign(np.array([sequence.generate_state(1)[0] >> 1, 0]))


class Best(keras.callbacks.EarlyStopping):
    """Keras's EarlyStopping, with state that is saved in checkpoints and restored from them.

    With ``patience=NEVER`` it only finds the best epoch. Of the weights at the best epoch it has
    those that this rank has; the others are None.
    """

    NEVER = sys.maxsize

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._restored: tuple[dict[str, Any], BestWeights] | None = None

    def restore(self, state: dict[str, Any], best_weights: BestWeights) -> None:
        """Sets the state to continue from when training begins."""
        self._restored = (state, best_weights)

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` takes, as plain values."""
        return {
            "monitor": self.monitor,
            "best": None if self.best is None else float(self.best),
            "best_epoch": int(self.best_epoch),
            "wait": int(self.wait),
            "stopped": self.stopped_epoch > 0,
        }

    def has_stopped(self) -> bool:
        """Whether the restored run was stopped early, and would be again."""
        if self._restored is None:
            return False
        state, _ = self._restored
        return bool(state["stopped"]) and state["wait"] >= self.patience

    def improved(self, epoch: int) -> bool:
        """Whether ``epoch``, which has just ended, is the best so far."""
        return self.best is not None and self.best_epoch == epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        super().on_train_begin(logs)
        if self._restored is not None:
            state, self.best_weights = self._restored
            self.best, self.best_epoch, self.wait = (
                state[key] for key in ("best", "best_epoch", "wait")
            )

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        try:
            with _weights_of_this_rank(self.model):
                super().on_epoch_end(epoch, logs)
        except ValueError as error:
            raise UserError(
                f"early_stopping.mode is auto, but it is not known whether {self.monitor} is "
                "better when it is small or large; give min or max"
            ) from error

    def on_train_end(self, logs: Logs = None) -> None:
        with _weights_of_this_rank(self.model):
            super().on_train_end(logs)

    def get_monitor_value(self, logs: Logs) -> float | None:
        logs = logs or {}
        if self.monitor not in logs:
            if self.patience == self.NEVER:
                return None
            raise UserError(
                f"early_stopping.monitor is {self.monitor}; it must be one of {', '.join(logs)}"
            )
        return float(logs[self.monitor])


def _weights_of_this_rank(model: keras.Model) -> AbstractContextManager[None]:
    """Makes a model give and take None for weights without a value in a block."""

    def get_weights() -> list[np.ndarray | None]:
        return [weight.numpy() if has_value(weight) else None for weight in model.weights]

    def set_weights(values: Sequence[np.ndarray | None]) -> None:
        for weight, value in zip(model.weights, values, strict=True):
            if value is not None:
                weight.assign(value)

    return replaced(model, get_weights=get_weights, set_weights=set_weights)


class EpochLog(keras.callbacks.Callback):
    """Keeps the logs of every epoch and writes them to a CSV file.

    The file is rewritten each time, so that after a resume it has each epoch once.

    Args:
        history: logs of the epochs before this run.
        file: None for no file.
    """

    def __init__(self, history: list[dict[str, Any]], file: Path | None) -> None:
        super().__init__()
        self.history = list(history)
        self._file = file

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        values = {name: float(value) for name, value in (logs or {}).items()}
        self.history.append({"epoch": epoch + 1, **values})
        if self._file is not None:
            columns = list(dict.fromkeys(name for row in self.history for name in row))
            with (
                replacing(self._file, "history") as temporary,
                temporary.open("w", newline="") as file,
            ):
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(self.history)
