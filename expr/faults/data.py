"""Data sets of the faults that a person's own code brings: only one rank of a job is at fault.

It is rank 1; for NaN in a pipeline rank 0, as the last stage reads no features.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from ooodist import engines

SAMPLES = 2048
FAULTY = 1700  # the sample at which rank 1 fails
FEATURES = 8


def _samples(fault: str) -> tf.data.Dataset:
    passes = 0

    def samples() -> Iterator[tuple[np.ndarray, int]]:
        nonlocal passes
        passes += 1
        is_pipeline = os.environ.get("OOODIST_ENGINE") == "mpi"
        at_fault = 0 if is_pipeline and fault == "is_nan" else 1
        faulty = engines.current().rank == at_fault
        for number in range(SAMPLES):
            row = np.full(FEATURES, number % 7 / 7, "f")
            if faulty and number >= FAULTY:
                if fault == "raises":
                    raise ValueError(f"sample {number} is broken")
                if fault == "is_nan":
                    row[:] = np.nan
                elif passes > 3:  # there are checkpoints by then
                    time.sleep(1000)
            yield row, number % 3

    spec = tf.TensorSpec(FEATURES, tf.float32), tf.TensorSpec((), tf.int64)
    data = tf.data.Dataset.from_generator(samples, output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(SAMPLES))


def raises() -> tf.data.Dataset:
    """Returns data that cannot be read on one rank, from sample ``FAULTY`` on."""
    return _samples("raises")


def is_nan() -> tf.data.Dataset:
    """Returns data that is not a number on one rank, from sample ``FAULTY`` on."""
    return _samples("is_nan")


def stands_still() -> tf.data.Dataset:
    """Returns data that one rank waits for in a later epoch, so that it obeys no signal."""
    return _samples("stands_still")
