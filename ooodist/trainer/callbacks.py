"""Keras callbacks of ``python -m ooodist.train``; they run, and decide alike, on every rank."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ooodist.errors import UserError
from ooodist.trainer import checkpoint
from ooodist.trainer.checkpoint import State
from ooodist.trainer.watchdog import expect_longer, expect_usual
from ooodist.util.replacing import replacing

Logs = dict[str, Any] | None


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
        for index, state in enumerate(random_states(self.model)):
            sequence = np.random.SeedSequence([self._seed, self._rank, epoch, index])
            state.assign(np.array([sequence.generate_state(1)[0] >> 1, 0]))


def random_states(model: keras.Model) -> list[Any]:
    """Returns the state variables of the model's Keras seed generators."""
    return [variable for variable in model.variables if variable.path.endswith(_RANDOM_STATE)]


_RANDOM_STATE = "/seed_generator_state"


class Best(keras.callbacks.EarlyStopping):
    """Keras's EarlyStopping, with state that is saved in checkpoints and restored from them.

    With ``patience=NEVER`` it only finds the best epoch.
    """

    NEVER = sys.maxsize

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._restored: tuple[dict[str, Any], list[np.ndarray] | None] | None = None

    def restore(self, state: dict[str, Any], best_weights: list[np.ndarray] | None) -> None:
        """Sets the state to continue from when training begins."""
        self._restored = (state, best_weights)

    def state(self) -> dict[str, Any]:
        """Returns what :meth:`restore` takes, as plain values."""
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
            super().on_epoch_end(epoch, logs)
        except ValueError as error:
            raise UserError(
                f"early_stopping.mode is auto, but it is not known whether {self.monitor} is "
                "better when it is small or large; give min or max"
            ) from error

    def get_monitor_value(self, logs: Logs) -> float | None:
        logs = logs or {}
        if self.monitor not in logs:
            if self.patience == self.NEVER:
                return None
            raise UserError(
                f"early_stopping.monitor is {self.monitor}; it must be one of {', '.join(logs)}"
            )
        return float(logs[self.monitor])


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
            with replacing(self._file) as temporary, temporary.open("w", newline="") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(self.history)


class SaveCheckpoints(keras.callbacks.Callback):
    """Saves checkpoints at the ends of epochs, on rank 0; if that fails, all ranks end.

    Args:
        folder: where checkpoints go; None on the other ranks.
        state: returns the :class:`State` to save after a given number of epochs.
        best: finds the best epoch; None to keep no ``best.keras``.
        epochs: number of epochs of the run; the last is always saved.
        every, keep: as ``checkpoint.every_epochs`` and ``checkpoint.keep``.
        agree: called with this rank's error or None; raises on all ranks if any has one.
    """

    def __init__(
        self,
        folder: Path | None,
        state: Callable[[int], State],
        best: Best | None,
        *,
        epochs: int,
        every: int,
        keep: int,
        agree: Callable[[str | None], None],
    ) -> None:
        super().__init__()
        self._folder = folder
        self._state = state
        self._best = best
        self._epochs = epochs
        self._every = every
        self._keep = keep
        self._agree = agree

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        done = epoch + 1
        is_last = done == self._epochs or self.model.stop_training
        is_due = is_last or done % self._every == 0
        is_best = self._best is not None and self._best.improved(epoch)
        if not (is_due or is_best):
            return
        error = None
        expect_longer(f"rank 0 began to save the checkpoint of epoch {done}")
        if self._folder is not None:
            try:
                self._save(self._folder, done, is_due, is_best)
            except UserError as caught:
                error = str(caught)
            expect_usual(f"the checkpoint of epoch {done} was saved")  # the others must arrive now
        self._agree(error)

    def _save(self, folder: Path, done: int, is_due: bool, is_best: bool) -> None:
        first, *copies = [
            *([folder / checkpoint.file_name(done)] if is_due else []),
            *([folder / checkpoint.BEST_NAME] if is_best else []),
        ]
        best_weights = self._best.best_weights if self._best is not None else None
        checkpoint.write(first, self.model, self._state(done), best_weights)
        for copy in copies:
            checkpoint.copy(first, copy)
        checkpoint.prune(folder, self._keep)
