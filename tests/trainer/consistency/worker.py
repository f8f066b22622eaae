"""A pipeline whose ranks are not given the same: ``mpirun -np 2 python worker.py FOLDER``.

What is one model on all ranks trains as plain Keras does on rank 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ooodist
from ooodist import engines

callbacks = keras.callbacks
numbers = np.random.default_rng(0)
X = numbers.normal(size=(96, 8)).astype(np.float32)
Y = (2 * X[:, :1] + numbers.normal(size=(96, 1))).astype(np.float32)
V = numbers.normal(size=(32, 8)).astype(np.float32)
W = 2 * V[:, :1]


def made(seed: int = 3) -> keras.Model:
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu")]
    model = keras.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    return model


def in_stages(model: keras.Model) -> keras.Model:
    return ooodist.pipelined(model, pipeline=2, microbatches=2, schedule="1f1b")


def fit(model: keras.Model, epochs: int, given: Any = (), **options: Any) -> dict[str, list[float]]:
    options |= {"shuffle": False, "verbose": 0, "callbacks": list(given)}
    history = model.fit(X, Y, batch_size=32, epochs=epochs, validation_data=(V, W), **options)
    found: dict[str, list[float]] = history.history
    return found


def callbacks_of_rank_0(folder: Path) -> None:
    """They stop, restore, save and lower the rate on all ranks."""

    def given(name: str) -> list[callbacks.Callback]:
        return [
            callbacks.BackupAndRestore(folder / f"backup-{name}"),
            callbacks.EarlyStopping(patience=3, min_delta=100.0, restore_best_weights=True),
            callbacks.ModelCheckpoint(folder / (name + "-{epoch}.keras")),
            callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=100.0, cooldown=99),
        ]

    rank = ooodist.rank()
    model = in_stages(made())
    history = fit(model, 30, given("ours") if rank == 0 else [])
    found = model.evaluate(V, W, verbose=0)
    engines.current().check_equal("the history", str((history["val_loss"], found)))
    assert found == pytest.approx(history["val_loss"][0], rel=1e-4)
    assert len(history["loss"]) == 4  # no epoch is better than the first by so much
    if rank == 0:
        plain = made()
        expected = fit(plain, 30, given("plain"))
        np.testing.assert_allclose(history["val_loss"], expected["val_loss"], rtol=1e-3)
        saved = keras.models.load_model(folder / f"ours-{len(history['loss'])}.keras")
        assert saved.count_params() == plain.count_params()
    model.ooodist.strategy.close()


def names_that_differ(folder: Path) -> None:
    """Rank 0 has built another model before; the numbers of layers differ."""
    if ooodist.rank() == 0:
        keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(4)])
    model = in_stages(made())
    history = fit(model, 2)
    if ooodist.rank() == 0:
        np.testing.assert_allclose(history["loss"], fit(made(), 2)["loss"], rtol=1e-4)
    model.ooodist.strategy.close()


def a_model_that_rank_0_has_loaded(folder: Path) -> None:
    """Weights, moments and the number of steps are rank 0's."""
    if ooodist.rank() == 0:
        before = made()
        fit(before, 2)
        before.save(folder / "before.keras")
        loaded = keras.models.load_model(folder / "before.keras")
        expected = fit(before, 2)["loss"]
    model = in_stages(loaded if ooodist.rank() == 0 else made(seed=7))
    history = fit(model, 4, initial_epoch=2)
    assert int(model.optimizer.iterations.numpy()) == 4 * 3
    if ooodist.rank() == 0:
        np.testing.assert_allclose(history["loss"], expected, rtol=1e-4)
    model.ooodist.strategy.close()


def weights_that_one_rank_sets(folder: Path) -> None:
    """They are refused by name, as nobody has those of the other stages."""
    model = in_stages(made())
    fit(model, 1)
    weights = model.get_weights()
    model.set_weights(weights)
    model.evaluate(V, W, verbose=0)
    if ooodist.rank() == 0:
        model.set_weights(weights)
    for method in (
        lambda: model.evaluate(V, W, verbose=0),
        lambda: model.predict(V),
        lambda: fit(model, 1),
    ):
        with pytest.raises(ooodist.UserError, match=r"model.set_weights was called on ranks \[0\]"):
            method()
    model.ooodist.strategy.close()


CASES: list[Callable[[Path], None]] = [
    callbacks_of_rank_0,
    names_that_differ,
    a_model_that_rank_0_has_loaded,
    weights_that_one_rank_sets,
]

if __name__ == "__main__":
    ooodist.init("mpi")
    for case in CASES:
        keras.utils.clear_session()
        case(Path(sys.argv[1]))
        print(f"held: {case.__name__}, rank {ooodist.rank()}", flush=True)
