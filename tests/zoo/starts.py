"""Small networks, zoos of them, and what tests of whole warm starts compare."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from ooodist.zoo.entry import Meta
from ooodist.zoo.zoo import Zoo

PIXELS, CLASSES = 8, 4
SAME = 1e-5  # of the largest output: what rounding may change
TASK, DATASET, TAGS = "classification", "stripes", ("small",)


def network(
    width: int = 6, blocks: int = 1, *, dropout: float = 0.0, seed: int = 0, dtype: Any = None
) -> keras.Model:
    """Convolutions, each with a batch norm and a ReLU; the names say which is which."""
    keras.utils.set_random_seed(seed)
    x = image = keras.Input((PIXELS, PIXELS, 1), name="image")
    for block in range(blocks):
        convolution = layers.Conv2D(
            width, 3, padding="same", use_bias=False, name=f"conv{block}", dtype=dtype
        )
        x = layers.BatchNormalization(name=f"norm{block}", dtype=dtype)(convolution(x))
        x = layers.ReLU(name=f"relu{block}", dtype=dtype)(x)
    x = layers.GlobalAveragePooling2D(name="mean", dtype=dtype)(x)
    x = layers.Dropout(dropout, name="dropout", dtype=dtype)(x)
    head = layers.Dense(CLASSES, name="head", dtype="float32")
    return keras.Model(image, head(x), name=f"network{width}x{blocks}")


def compiled(model: keras.Model, optimizer: Any = "sgd") -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def stripes(count: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of one of four frequencies, in noise, and which it is."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count)
    phases = random.uniform(0, 2 * np.pi, (count, 1))
    rows = np.sin(phases + np.arange(PIXELS) * (labels[:, None] + 0.3) * np.pi / CLASSES)
    images = rows[:, :, None, None] + random.normal(0, 0.3, (count, PIXELS, PIXELS, 1))
    return images.astype(np.float32), labels.astype(np.int32)


def batches(number: int = 4, size: int = 16) -> list[tuple[np.ndarray, np.ndarray]]:
    return [stripes(size, seed) for seed in range(number)]


def trained(model: keras.Model, steps: int = 30, rate: float = 0.01) -> keras.Model:
    """The model after some steps of Adam, which also moves statistics of batch norms."""
    compiled(model, keras.optimizers.Adam(rate))
    model.optimizer.build(model.trainable_variables)  # else the first step is traced twice
    for step in range(steps):
        model.train_on_batch(*stripes(32, 100 + step))
    return model


def meta(name: str = "parent", accuracy: float | None = 0.9, **changes: Any) -> Meta:
    metrics = {} if accuracy is None else {"accuracy": accuracy}
    said = {"task": TASK, "dataset": DATASET, "tags": TAGS, "metrics": metrics}
    return Meta(name, **said | changes)


def zoo_of(folder: Path, *models: keras.Model, metas: Sequence[Meta] = ()) -> str:
    """A zoo of these models; its address."""
    with Zoo(folder) as zoo:
        for model, each in zip(models, metas or [meta()] * len(models), strict=True):
            zoo.add_model(model, each)
    return str(folder)


def outputs(model: keras.Model, x: np.ndarray, training: bool = False) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(model(x, training=training)), np.float64)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest, as a share of the largest number."""
    return float(np.abs(one - other).max() / np.abs(other).max())


def state(model: keras.Model) -> dict[str, np.ndarray]:
    """All that training may change: weights, generators, metrics, and what an optimizer keeps."""
    found = {f"model {n} {v.path}": v for n, v in enumerate(model.variables)}
    found |= {f"metric {n} {v.path}": v for n, v in enumerate(model.metrics_variables)}
    if getattr(model, "optimizer", None) is not None:
        found |= {f"optimizer {v.path}": v for v in model.optimizer.variables}
    return {name: np.array(variable.numpy()) for name, variable in found.items()}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert list(one) == list(other)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def free_port() -> int:
    """At which nobody listens."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r for r in caplog.records if r.name == "ooodist" and r.levelno >= logging.WARNING]
    return [record.getMessage() for record in found]
