"""Sets how our own datasets are read: in a fixed order, with a fixed number of parallel calls.

tf.data would tune that number while it reads. Our pipelines gain nothing by it, and ending an
iterator that is tuned often waits for the tuning thread, which sleeps ever longer: up to a minute
after a minute of training (TensorFlow 2.21).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Batches made in parallel: each is a whole batch in memory.
BATCHES_AT_ONCE = 4


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, read in a fixed order and without autotuning.

    Where it has ``tf.data.AUTOTUNE``, a map then makes up to 16 calls at a time, and a prefetch
    grows each time that it runs empty.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    return dataset.with_options(options)


def map_elements(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Maps single samples, on all cores that this process may use."""
    return dataset.map(function, len(os.sched_getaffinity(0)), deterministic=True)


def map_batches(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Maps whole batches, BATCHES_AT_ONCE at a time."""
    return dataset.map(function, BATCHES_AT_ONCE, deterministic=True)
