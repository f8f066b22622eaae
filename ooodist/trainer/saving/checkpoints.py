"""Decides when checkpoints are saved, the same on all ranks, and has them written meanwhile.

Steps are counted alike everywhere. Minutes are those of rank 0's clock; when they are over, or when
a rank has written its part, or when a signal asks one to stop, all ranks learn it with the logs of
the same call (:mod:`ooodist.step.notices`), so no call waits for an exchange more.

One checkpoint is written at a time. One that is due meanwhile inside an epoch is put off until the
first is complete; one at the end of an epoch waits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import keras

from ooodist.checkpoint.state import State, place_text
from ooodist.errors import UserError
from ooodist.settings.sections import CheckpointConfig
from ooodist.step.notices import Notice, Notices
from ooodist.trainer.callbacks import Best
from ooodist.trainer.saving import within_epoch
from ooodist.trainer.saving.background_thread import BackgroundThread
from ooodist.trainer.saving.savers import Saver, Wanted
from ooodist.trainer.watchdog import expect_longer, expect_usual

logger = logging.getLogger("ooodist")

Logs = dict[str, Any] | None


class Stopped(Exception):
    """All ranks have stopped training after the same step, as a signal asked one of them to.

    Args:
        where: where in the training.
        file: the checkpoint that was written there; None if the job writes none.
    """

    def __init__(self, where: str, file: Path | None) -> None:
        kept = "this job writes no checkpoints, so what it has trained is lost"
        if file is not None:
            kept = f"{file} is written; go on with --resume"
        super().__init__(f"SIGTERM: stopped after {where}; {kept}")


class SaveCheckpoints(keras.callbacks.Callback):
    """Saves checkpoints, and stops the training where a signal asks for it.

    Args:
        saver: what saves them.
        config: says when they are due.
        background: whether they are written while the training goes on.
        state: returns the :class:`State` after so many epochs, and steps of the next.
        best: finds the best epoch; None to keep no best checkpoint.
        epochs: number of epochs of the run; the last is always saved.
        steps_per_epoch: batches of an epoch.
    """

    def __init__(
        self,
        saver: Saver,
        config: CheckpointConfig,
        state: Callable[[int, int], State],
        best: Best | None,
        *,
        background: bool,
        epochs: int,
        steps_per_epoch: int,
    ) -> None:
        super().__init__()
        self._saver = saver
        self._config = config
        self._state = state
        self._best = best
        self._background = background
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch
        self._thread = BackgroundThread("checkpoint")
        self._pending = ""  # where the training was when what is being written was begun
        self._number = 0  # how many were begun
        self._epoch = 0  # complete epochs
        self._steps = 0  # of the whole run, when one was last due by steps
        self._is_due = False
        self._is_put_off = False
        self._times_due = 0  # by the clock, as far as that was heeded
        self._since = 0.0
        self._file: Path | None = None  # the newest that was begun

    @property
    def _notices(self) -> Notices:
        notices: Notices = self.model.ooodist.strategy.watch.notices
        return notices

    def on_train_begin(self, logs: Logs = None) -> None:
        self._since = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch
        fit = self.model.ooodist
        self._steps = epoch * self._steps_per_epoch + self._steps_per_epoch - fit.batches_left

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        fit = self.model.ooodist
        if not fit.call_has_trained:
            return
        step = self._steps_per_epoch - fit.batches_left
        self._look(self._epoch * self._steps_per_epoch + step)
        if not fit.batches_left:  # the end of the epoch comes next
            return
        if self._is_stopping:
            self._stop(self._epoch, step)
        if not self._is_due:
            return
        if not self._pending:
            self._begin(self._epoch, step, is_due=True, is_best=False)
        elif not self._is_put_off:
            self._is_put_off = True
            logger.info(
                "a checkpoint is due at step %d of epoch %d, but the one of %s is still being "
                "written: it is put off",
                step,
                self._epoch + 1,
                self._pending,
            )

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        done = epoch + 1
        self._look(done * self._steps_per_epoch)
        is_last = done == self._epochs or self.model.stop_training
        every = self._config.every_epochs
        is_due = is_last or self._is_due or (every > 0 and done % every == 0) or self._is_stopping
        is_best = self._best is not None and self._best.improved(epoch)
        if self._config.is_wanted and (is_due or is_best):
            self._begin(done, 0, is_due=is_due, is_best=is_best)
        if self._is_stopping:
            self._end_with(done, 0)

    def on_train_end(self, logs: Logs = None) -> None:
        self._complete()

    def settle(self, seconds: float) -> None:
        """Lets this rank write what it has begun, at most so long, after training has failed."""
        self._thread.settle(seconds)
        self._saver.settle_copies(seconds)

    def finish_copies(self, *more: Path) -> None:
        """Waits until everything is at the second place, if there is one; all ranks call it.

        Args:
            more: files of the output folder that are copied, too.

        Raises UserError, on all ranks, if it could not be copied.
        """
        expect_longer("copies of checkpoints were to be complete")
        self._saver.finish_copies(more)

    @property
    def _is_stopping(self) -> bool:
        return self._notices.total(Notice.STOP) > 0

    def _look(self, steps: int) -> None:
        """Looks at what has become due since the call before, and at what is written."""
        notices, every = self._notices, self._config.every_steps
        if every and steps // every > self._steps // every:
            self._is_due = True
        self._steps = steps
        seconds = 60 * self._config.every_minutes
        is_time = seconds > 0 and time.monotonic() - self._since >= seconds
        if is_time and self.model.ooodist.engine.rank == 0:
            notices.tell(Notice.DUE, self._times_due + 1)
        if notices.total(Notice.DUE) > self._times_due:
            self._is_due = True
        size = self.model.ooodist.engine.size
        if self._pending and notices.total(Notice.WRITTEN) >= self._number * size:
            self._complete()

    def _begin(self, epoch: int, step: int, *, is_due: bool, is_best: bool) -> None:
        """Begins to save; all ranks call it after the same step."""
        self._complete()
        model = self.model
        fit, engine = model.ooodist, model.ooodist.engine
        state = self._state(epoch, step)
        expect_longer(f"the checkpoint of {state.where()} began to be saved")
        if step:
            fit.strategy.watch.look()
            fit.strategy.flush()
            state = replace(state, within=within_epoch.taken(engine, model, step))
        if is_due:
            self._is_due = self._is_put_off = False
            self._times_due = max(self._times_due, self._notices.total(Notice.DUE))
            self._since = time.monotonic()
        best_weights = None if self._best is None else self._best.best_weights
        wanted = Wanted(state, best_weights, is_due=is_due, is_best=is_best)
        with fit.strategy.inner.in_parts():
            self._file = self._saver.begin(model, wanted, copies=self._background)
            self._pending = state.where()
            self._number += 1
            if not self._background:
                self._complete()
                return
        number, notices = self._number, self._notices
        self._thread.start(self._saver.write, lambda: notices.tell(Notice.WRITTEN, number))
        expect_usual(f"the checkpoint of {self._pending} was copied")

    def _complete(self) -> None:
        """Completes what is being written, waiting for it; all ranks call it after the same step.

        Raises UserError, on all ranks, if it could not be written.
        """
        if not self._pending:
            return
        where, self._pending = self._pending, ""
        expect_longer(f"the checkpoint of {where} was to be complete")
        self._saver.complete(self._thread.wait if self._background else self._saver.write)
        expect_usual(f"the checkpoint of {where} was saved")

    def _stop(self, epoch: int, step: int) -> NoReturn:
        """Saves what there is, and raises Stopped."""
        if self._config.is_wanted:
            self._begin(epoch, step, is_due=True, is_best=False)
        self._end_with(epoch, step)

    def _end_with(self, epoch: int, step: int) -> NoReturn:
        self._complete()
        try:
            self.finish_copies()
        except UserError as error:  # it was asked to stop, and the checkpoint is there
            logger.warning("%s", error)
        raise Stopped(place_text((epoch, step)), self._file)
