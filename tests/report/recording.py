"""Small models, and recording what they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ooodist
from ooodist.profiler.recording.timeline import Timeline, make_timeline
from ooodist.profiler.recording.xplane import OpEvent, read_op_events, start_recording

layers = keras.layers
BATCH = 8


def dense_model() -> keras.Model:
    """Four layers of a kernel and a bias each."""
    hidden = [layers.Dense(48, activation="relu", name=f"layer{i}") for i in (1, 2, 3)]
    top = layers.Dense(5, name="layer4")
    return compiled(keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), *hidden, top]))


def convolutional_model() -> keras.Model:
    """A residual connection; batch norms, whose gradients do not split."""
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    y = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, y])))
    return compiled(keras.Model(image, layers.Dense(5)(layers.Dense(16)(x))))


def compiled(model: keras.Model) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    return model


def samples(num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrays for so many steps on one worker."""
    numbers = np.random.default_rng(1)
    x = numbers.normal(size=(num_steps * BATCH, 8, 8, 3)).astype(np.float32)
    return x, numbers.integers(0, 5, num_steps * BATCH).astype(np.int32)


def distributed(make: Any, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    return distribute(make(), **options)


def distribute(model: keras.Model, **options: Any) -> keras.Model:
    ooodist.init("local")
    return ooodist.distribute(model, **options)


def fit(model: keras.Model, num_steps: int, **options: Any) -> None:
    x, y = samples(num_steps)
    model.fit(x, y, batch_size=BATCH, verbose=0, **options)


def record(model: keras.Model, num_steps: int, folder: Path) -> list[OpEvent]:
    """The ops of so many steps of fit, which were traced before."""
    fit(model, num_steps)
    start_recording(folder)
    try:
        fit(model, num_steps)
    finally:
        tf.profiler.experimental.stop()
    return read_op_events(folder)


def record_timeline(model: keras.Model, num_steps: int, folder: Path) -> Timeline:
    events = record(model, num_steps, folder)
    return make_timeline(events, model.ooodist.strategy.inner.backward.steps)
