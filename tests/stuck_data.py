"""A data set that one rank cannot read twice: it waits, as for a disk that has gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from ooodist import engines

SAMPLES = 512


def waits() -> tf.data.Dataset:
    """Returns 8 features and one of 3 classes; in the second epoch rank 1 waits for ten minutes."""
    epochs = 0

    def samples() -> Iterator[tuple[np.ndarray, int]]:
        nonlocal epochs
        epochs += 1
        for number in range(SAMPLES):
            if epochs == 2 and engines.current().rank == 1:
                time.sleep(600)
            yield np.full(8, number % 7 / 7, "f"), number % 3

    spec = tf.TensorSpec(8, tf.float32), tf.TensorSpec((), tf.int64)
    data = tf.data.Dataset.from_generator(samples, output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(SAMPLES))
