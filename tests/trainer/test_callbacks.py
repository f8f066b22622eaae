"""The program's callbacks, each on its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from ooodist.compat.keras_deferred import has_value, release
from ooodist.errors import UserError
from ooodist.step.replicas import is_random_state
from ooodist.trainer import writers
from ooodist.trainer.callbacks import (
    Best,
    EpochLog,
    SeedEachEpoch,
    StopOnInvalidLoss,
)


@pytest.fixture(scope="module")
def model() -> keras.Model:
    inner = keras.Sequential([keras.Input((4,)), keras.layers.GaussianNoise(0.1)])
    layers = [keras.layers.Dropout(0.5), inner, keras.layers.Dropout(0.5, seed=3)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_it_is_decided_for_every_callback_of_keras_where_it_runs() -> None:
    everywhere = {  # they decide from logs that are the same on all ranks, and write nothing
        "EarlyStopping",
        "History",
        "LambdaCallback",
        "LearningRateScheduler",
        "ProgbarLogger",
        "ReduceLROnPlateau",
        "SwapEMAWeights",
        "TerminateOnNaN",
    }
    bases = {"Callback", "CallbackList"}
    known = {n for n, c in vars(keras.callbacks).items() if isinstance(c, type)}
    assert known - bases - everywhere == {writer.__name__ for writer in writers.WRITERS}


def test_a_pipeline_saves_at_the_ends_of_epochs(tmp_path: Path) -> None:
    kinds = [
        lambda every: keras.callbacks.ModelCheckpoint(tmp_path / "x.keras", save_freq=every),
        lambda every: keras.callbacks.BackupAndRestore(tmp_path, save_freq=every),
    ]
    for kind in kinds:
        writers.check_saves_at_ends_of_epochs([kind("epoch")])
        with pytest.raises(UserError, match="save_freq=5, but rank 0 gets what other ranks have"):
            writers.check_saves_at_ends_of_epochs([kind(5)])


class FakeModel:
    """What a stopping callback sees of a model."""

    stop_training = False
    metrics: tuple[Any, ...] = ()

    def get_weights(self) -> list[np.ndarray]:
        return [np.ones(1)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_invalid_loss_ends_the_run_one_launch_later(bad: float) -> None:
    callback = StopOnInvalidLoss()
    callback.on_epoch_begin(2)
    callback.on_train_batch_end(3, {"loss": 1.0})
    callback.on_train_batch_end(7, {"loss": bad})
    with pytest.raises(UserError, match=rf"the loss is {bad} at epoch 3, step 8; lower optimizer"):
        callback.on_train_batch_end(11, {"loss": 1.0})


def test_an_invalid_loss_of_the_last_launch_ends_the_epoch() -> None:
    callback = StopOnInvalidLoss()
    callback.on_train_batch_end(3, {"loss": math.nan})
    with pytest.raises(UserError, match="the loss is nan"):
        callback.on_epoch_end(0, {})


def test_seeds_depend_on_seed_rank_epoch_and_layer(model: keras.Model) -> None:
    def states(seed: int, rank: int, epoch: int) -> list[tuple[int, ...]]:
        callback = SeedEachEpoch(seed, rank)
        callback.set_model(model)
        callback.on_epoch_begin(epoch)
        return [
            tuple(np.asarray(state.value)) for state in filter(is_random_state, model.variables)
        ]

    assert len(states(1, 0, 0)) == 3
    all_of_them = [
        state
        for arguments in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]
        for state in states(*arguments)
    ]
    assert len(set(all_of_them)) == 12
    assert states(1, 0, 0) == all_of_them[:3]


def test_random_states_of_other_ranks_are_left_alone() -> None:
    model = keras.Sequential([keras.Input((4,)), *(keras.layers.Dropout(0.5) for _ in range(2))])
    first, second = filter(is_random_state, model.variables)
    callback = SeedEachEpoch(1, 0)
    callback.set_model(model)
    callback.on_epoch_begin(0)
    expected = np.asarray(second.value)
    release(first, "rank 1")
    second.assign([0, 0])
    callback.on_epoch_begin(0)
    np.testing.assert_array_equal(second.value, expected)
    assert not has_value(first)


def run_best(best: Best, values: list[float], first: int = 0) -> list[bool]:
    """Epochs with these values of the monitor, as Keras' fit would have them."""
    model = FakeModel()
    best.set_model(model)
    best.on_train_begin()
    improved = []
    for epoch, value in enumerate(values, start=first):
        best.on_epoch_end(epoch, {"val_loss": value})
        improved.append(best.improved(epoch))
        if model.stop_training:
            break
    return improved


@pytest.mark.parametrize("cut", range(1, 7))
def test_early_stopping_goes_on_where_it_was(cut: int) -> None:
    values = [5.0, 4.0, 4.5, 3.0, 3.5, 3.25, 3.1, 1.0]
    whole = Best(monitor="val_loss", mode="min", patience=3)
    expected = run_best(whole, values)
    assert len(expected) == 7

    first = Best(monitor="val_loss", mode="min", patience=3)
    improved = run_best(first, values[:cut])
    second = Best(monitor="val_loss", mode="min", patience=3)
    second.restore(first.state(), None)
    assert not second.has_stopped()
    improved += run_best(second, values[cut:], first=cut)
    assert improved == expected
    assert second.state() == whole.state()


def test_a_run_that_was_stopped_is_not_trained_again_unless_patience_grows() -> None:
    stopped = Best(monitor="val_loss", mode="min", patience=2)
    run_best(stopped, [1.0, 2.0, 2.0, 2.0])
    for patience, is_over in [(2, True), (1, True), (3, False)]:
        again = Best(monitor="val_loss", mode="min", patience=patience)
        again.restore(stopped.state(), None)
        assert again.has_stopped() is is_over


def test_best_weights_are_kept() -> None:
    best = Best(monitor="val_loss", mode="min", patience=5, restore_best_weights=True)
    weights = [np.zeros(3)]
    best.restore({"monitor": "val_loss", "best": 1.0, "best_epoch": 2, "wait": 1}, weights)
    run_best(best, [2.0], first=4)
    assert best.best_weights is weights


def test_best_weights_of_other_ranks_are_left_alone() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    best = Best(monitor="val_loss", mode="min", patience=2, restore_best_weights=True)
    best.set_model(model)
    theirs = model.weights[2:]
    for weight in theirs:
        release(weight, "rank 1")
    best.on_train_begin()
    for epoch, value in enumerate([2.0, 1.0, 3.0]):
        for weight in model.weights[:2]:
            weight.assign(np.full(weight.shape, value))
        best.on_epoch_end(epoch, {"val_loss": value})
    assert best.best_weights is not None
    assert [weight is None for weight in best.best_weights] == [False, False, True, True]
    best.on_train_end()
    for weight in model.weights[:2]:
        np.testing.assert_array_equal(weight.numpy(), np.ones(weight.shape))
    assert not any(map(has_value, theirs))
    assert "get_weights" not in vars(model)


def test_an_unknown_monitor_is_an_error() -> None:
    best = Best(monitor="val_los", mode="min", patience=3)
    with pytest.raises(UserError, match=r"early_stopping\.monitor is val_los; it must be one of v"):
        run_best(best, [1.0])
    unconfigured = Best(monitor="val_los", mode="min", patience=Best.NEVER)
    assert run_best(unconfigured, [1.0]) == [False]


def test_a_monitor_without_a_direction_is_an_error() -> None:
    best = Best(monitor="oddity")
    best.set_model(FakeModel())
    best.on_train_begin()
    with pytest.raises(UserError, match=r"early_stopping\.mode is auto, .* give min or max"):
        best.on_epoch_end(0, {"oddity": 1.0})


def test_the_log_has_each_epoch_once_after_a_resume(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    file.write_text("epoch,loss\n1,0.5\n2,0.25\n3,0.1\n")  # epoch 3 came after the checkpoint
    log = EpochLog([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}], file)
    log.on_epoch_end(2, {"loss": 0.1 + 0.2, "val_loss": np.float32(1)})
    assert file.read_text().split() == [
        "epoch,loss,val_loss",
        "1,0.5,",
        "2,0.25,",
        "3,0.30000000000000004,1.0",
    ]
    assert log.history[-1] == {"epoch": 3, "loss": 0.1 + 0.2, "val_loss": 1.0}
