"""Models, and checkpoints in parts of them, that one process writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ooodist.checkpoint import keras_file, parallel_write
from ooodist.checkpoint.state import State
from ooodist.engines.local import LocalEngine


def make_model(
    optimizer: Callable[[], keras.optimizers.Optimizer] = keras.optimizers.Adam,
    policy: str = "float32",
) -> keras.Model:
    """A small model of many kinds of layers, compiled and trained for a few steps."""
    keras.utils.set_random_seed(4)
    inputs = keras.Input((6,), dtype="int32", name="words")
    hidden = keras.layers.Embedding(11, 8, name="embedding", dtype=policy)(inputs)
    attention = keras.layers.MultiHeadAttention(2, 4, name="attention", dtype=policy)
    hidden = keras.layers.Add(name="add")([hidden, attention(hidden, hidden)])
    hidden = keras.layers.BatchNormalization(name="norm", dtype=policy)(hidden)
    block = keras.Sequential(
        [
            keras.layers.Dense(5, name="inner", dtype=policy),
            keras.layers.Dropout(0.5, name="dropout", dtype=policy),
        ],
        name="block",
    )
    hidden = keras.layers.GRU(4, recurrent_initializer="he_normal", name="gru", dtype=policy)(
        block(hidden)
    )
    outputs = keras.layers.Dense(3, name="head", dtype=policy)(hidden)
    model = keras.Model(inputs, outputs, name="example")
    # Tracing takes far longer than the two steps and one prediction.
    model.compile(optimizer(), "mse", metrics=["mae"], run_eagerly=True, jit_compile=False)
    random = np.random.default_rng(0)
    x, y = random.integers(0, 11, (32, 6)), random.random((32, 3), np.float32)
    model.fit(x, y, batch_size=16, verbose=0)
    return model


def state_of(epoch: int = 3) -> State:
    """What a job says of itself; the variables are described as they are written."""
    return State(
        epoch=epoch,
        step=11 * epoch,
        seed=1,
        size=2,
        batch=64,
        config={"batch": 64},
        variables=(),
        fingerprint="",
        history=[{"epoch": 1, "loss": 0.1 + 0.2}],
        best={"monitor": "val_loss", "best": 1e-300, "wait": 0},
        versions={"keras": keras.__version__},
    )


def values_of(model: keras.Model) -> list[np.ndarray]:
    """The values of all variables that a checkpoint keeps."""
    return [np.asarray(variable.numpy()) for variable in keras_file.kept(model)]


def write_parts(folder: Path, model: keras.Model, **arguments: Any) -> None:
    """Writes a checkpoint in parts, as a single rank."""
    state = arguments.pop("state", state_of())
    parallel_write.write(LocalEngine(), folder, model, state, {}, **arguments)


def assert_same(one: np.ndarray, other: np.ndarray) -> None:
    """Checks that two arrays are alike, bit for bit."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()
