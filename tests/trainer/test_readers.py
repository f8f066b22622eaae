"""Which callbacks may look at weights between two calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from ooodist.trainer.progress import StepTimer
from ooodist.trainer.readers import READS_NOTHING, may_read_weights, why_complete

callbacks = keras.callbacks
Callback = callbacks.Callback


class OfEpochs(Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.get_weights()


class OfBatches(Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.get_weights()


class Before(Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.get_weights()


class OfTheOldName(Callback):
    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.get_weights()


class Derived(callbacks.CSVLogger):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.get_weights()


class Harmless(OfBatches):
    ooodist_reads_no_weights = True


def saving(every: Any) -> Callback:
    return callbacks.ModelCheckpoint("x.weights.h5", save_weights_only=True, save_freq=every)


def test_what_the_user_runs_after_batches_may_read_weights() -> None:
    given = [OfBatches(), OfEpochs(), Before(), OfTheOldName(), Derived("x"), OfBatches()]
    assert may_read_weights(given) == ["Before", "Derived", "OfBatches", "OfTheOldName"]


def test_who_says_so_reads_none() -> None:
    marked = OfBatches()
    setattr(marked, READS_NOTHING, True)
    assert may_read_weights([Harmless(), marked]) == []


@pytest.mark.parametrize(
    ("callback", "reads"),
    [
        (callbacks.TerminateOnNaN(), False),
        (callbacks.ProgbarLogger(), False),
        (callbacks.TensorBoard("x", update_freq=1), False),
        (callbacks.LambdaCallback(on_epoch_end=print), False),
        (callbacks.LambdaCallback(on_train_batch_end=print), True),
        (saving("epoch"), False),
        (saving(5), True),
        (StepTimer(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callbacks_of_keras_and_our_own(callback: Callback, reads: bool) -> None:
    assert bool(may_read_weights([callback])) == reads


def test_a_backup_after_batches(tmp_path: Path) -> None:
    assert may_read_weights([callbacks.BackupAndRestore(tmp_path, save_freq=2)])
    assert not may_read_weights([callbacks.BackupAndRestore(tmp_path)])


def test_the_log_names_the_callbacks_and_the_way_out() -> None:
    text = why_complete(["Mine", "Yours"])
    assert text.startswith("Mine, Yours may look at the weights after each batch")
    assert text.endswith("ooodist_reads_no_weights = True")
    assert why_complete([]) == ""
