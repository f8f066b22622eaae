"""Small compiled models, and a batch for each."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ooodist.planner.costs import StepCosts
from ooodist.profiler.compute import measure_step
from ooodist.profiler.step import trace_step

layers = keras.layers
BATCH = 64
Batch = tuple[np.ndarray, np.ndarray]


def dense_chain(optimizer: Any = "sgd") -> keras.Model:
    """Layers a and b of 64 units each and c of 5, on 32 numbers."""
    model = keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(64, activation="relu", name="a"),
            layers.Dense(64, activation="relu", name="b"),
            layers.Dense(5, name="c"),
        ],
        name="chain",
    )
    return compiled(model, optimizer)


def with_everything(optimizer: Any = "adam", policy: str = "float32") -> keras.Model:
    """Dropout, batch norm and layers of other kinds: all that a step can change."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        keras.utils.set_random_seed(3)
        image = keras.Input((32,))
        x = layers.Reshape((4, 4, 2))(image)
        x = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x))
        x = layers.Dropout(0.3)(layers.Flatten()(layers.ReLU()(x)))
        x = layers.Dense(32, activation="gelu", kernel_regularizer="l2")(x)
        model = keras.Model(image, layers.Dense(5, dtype="float32")(x), name="everything")
        return compiled(model, optimizer)
    finally:
        keras.config.set_dtype_policy(before)


def compiled(model: keras.Model, optimizer: Any = "sgd", **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False, **options)
    return model


def batch(seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    x = random.normal(size=(BATCH, 32)).astype(np.float32)
    return x, random.integers(0, 5, BATCH).astype(np.int32)


def measure_compute(
    model: keras.Model, batch: Any, *, accumulate: int = 1, steps: int = 12
) -> StepCosts:
    """What a step of a model costs on this worker."""
    return measure_step(trace_step(model, batch, accumulate=accumulate), steps=steps)
