"""Models that override fit in the ways in which people do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 8


def undecorated(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator without functools.wraps."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return run


class Collects(keras.Model):
    """As KerasHub's tasks, and under other names than Keras's."""

    def fit(self, x: Any = None, y: Any = None, **options: Any) -> Any:
        return super().fit(x=x, y=y, **options)

    def evaluate(self, x: Any = None, y: Any = None, **options: Any) -> Any:
        return super().evaluate(x=x, y=y, **options)

    def train_on_batch(self, x: Any, y: Any = None, **options: Any) -> Any:
        return super().train_on_batch(x, y, **options)

    def predict(self, x: Any, **options: Any) -> Any:
        return super().predict(x, **options)


class Stars(keras.Model):
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return super().fit(*args, **kwargs)

    def evaluate(self, **kw: Any) -> Any:
        return super().evaluate(**kw)


class Decorated(keras.Model):
    fit = undecorated(keras.Model.fit)
    train_on_batch = undecorated(keras.Model.train_on_batch)


class Few(keras.Model):
    """Takes neither callbacks nor verbose."""

    def fit(self, x: Any, y: Any, epochs: int = 1, validation_data: Any = None) -> Any:
        options = {"batch_size": BATCH, "shuffle": False, "validation_data": validation_data}
        return super().fit(x, y, epochs=epochs, **options)


class Twice(keras.Model):
    """Trains in two rounds, and calls itself."""

    def fit(self, x: Any, y: Any = None, epochs: int = 1, **options: Any) -> Any:
        if y is None:
            return self.fit(*x, epochs=epochs, **options)
        super().fit(x, y, epochs=1, **options)
        return super().fit(x, y, epochs=epochs, initial_epoch=1, **options)


class OneArgument(keras.Model):
    def fit(self, data: Any, rounds: int = 1, **options: Any) -> Any:
        return super().fit(data[0], data[1], epochs=rounds, **options)


class MakesBatches(keras.Model):
    """As KerasHub's tasks with a preprocessor: what reaches Keras is a data set."""

    def fit(self, data: Any, epochs: int = 1) -> Any:
        batches = tf.data.Dataset.from_tensor_slices(tuple(data)).batch(BATCH)
        return super().fit(batches.prefetch(1), epochs=epochs, verbose=0)


class BringsItsData(keras.Model):
    """Nobody sees what it trains on."""

    def fit(self, epochs: int = 1) -> Any:
        batches = tf.data.Dataset.from_tensor_slices(data(40)).batch(BATCH)
        return super().fit(batches, epochs=epochs, verbose=0)


def data(samples: int = 64) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(7)
    return draw.normal(size=(samples, 4)).astype("float32"), draw.integers(0, 2, samples)


def made(kind: type[keras.Model] = keras.Model, seed: int = 3) -> Any:
    """A compiled model of this class; the same weights for the same seed."""
    keras.utils.set_random_seed(seed)
    numbers = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="relu")(numbers)
    model = kind(numbers, keras.layers.Dense(2, activation="softmax")(hidden))
    loss = "sparse_categorical_crossentropy"
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return model


def with_lambda() -> Any:
    """A model whose own fit was kept and is called by a lambda on the instance."""
    model = made()
    plain = model.fit
    model.fit = lambda *args, **kwargs: plain(*args, **kwargs)
    return model
