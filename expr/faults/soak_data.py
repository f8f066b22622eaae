"""The digits, read as slowly as ``PAUSE`` says: undisturbed runs, which have none, are short.

A job that goes on inside an epoch reads what it has had of it again, just as slowly; so epochs are
short.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from ooodist.data.kinds.digits import LARGEST_VALUE, load

PAUSE = "OOODIST_SOAK_PAUSE"  # seconds for each 32 samples
TRAINING_SAMPLES = 1438


def digits() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Returns training and validation data: 64 features from 0 to 1, and the digit."""
    pixels, labels = load()
    x, y = (pixels.reshape(len(pixels), -1) / LARGEST_VALUE).astype("float32"), labels
    parts = slice(TRAINING_SAMPLES), slice(TRAINING_SAMPLES, None)
    pauses = float(os.environ.get(PAUSE, 0)), 0.0
    training, validation = (
        _dataset(x[part], y[part], pause) for part, pause in zip(parts, pauses, strict=True)
    )
    return training, validation


def _dataset(x: np.ndarray, y: np.ndarray, pause: float) -> tf.data.Dataset:
    def samples() -> Iterator[tuple[np.ndarray, np.int64]]:
        for number, pair in enumerate(zip(x, y, strict=True)):
            if pause and number % 32 == 0:
                time.sleep(pause)
            yield pair

    spec = tf.TensorSpec(x.shape[1:], tf.float32), tf.TensorSpec((), tf.int64)
    data = tf.data.Dataset.from_generator(samples, output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(len(x)))
