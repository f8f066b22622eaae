"""The digits, read as slowly as ``PAUSE`` says: undisturbed runs, which have none, are short."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from ooodist.data.kinds.digits import LARGEST_VALUE, load

PAUSE = "OOODIST_SOAK_PAUSE"  # seconds for each 32 samples
DIGITS, REPEATS = 1438, 10  # to train with, and how often in an epoch
TRAINING_SAMPLES = DIGITS * REPEATS


def digits() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Returns training and validation data: 64 features from 0 to 1, and the digit."""
    pixels, labels = load()
    x, y = (pixels.reshape(len(pixels), -1) / LARGEST_VALUE).astype("float32"), labels
    training_x = np.tile(x[:DIGITS], (REPEATS, 1))
    training_y = np.tile(y[:DIGITS], REPEATS)
    first = _dataset(training_x, training_y, float(os.environ.get(PAUSE, 0)))
    return first, _dataset(x[DIGITS:], y[DIGITS:], 0.0)


def _dataset(x: np.ndarray, y: np.ndarray, pause: float) -> tf.data.Dataset:
    def samples() -> Iterator[tuple[np.ndarray, np.int64]]:
        for number, pair in enumerate(zip(x, y, strict=True)):
            if pause and number % 32 == 0:
                time.sleep(pause)
            yield pair

    spec = tf.TensorSpec(x.shape[1:], tf.float32), tf.TensorSpec((), tf.int64)
    data = tf.data.Dataset.from_generator(samples, output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(len(x)))
