"""Looks into tf.data's data sets, and places a shard where they read their files."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset


def steps_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a data set and all that it is made of, the sources last.

    ``_inputs()`` and, of readers of files, ``_filenames``: a data set has no public way to those
    that it was made of.
    """
    yield dataset
    inputs = dataset._inputs()
    if not inputs and isinstance(getattr(dataset, "_filenames", None), tf.data.Dataset):
        inputs = [dataset._filenames]
    for each in inputs:
        yield from steps_of(each)


def is_sharded(dataset: tf.data.Dataset) -> bool:
    """Whether ``Dataset.shard`` or ``sharded_by_file`` was called on it, or before its last steps.

    By the names of their private classes, as there is no public way.
    """
    names = ("_ShardDataset", "_AutoShardDataset")
    return any(type(step).__name__ in names for step in steps_of(dataset))


def shuffle_seeds(dataset: tf.data.Dataset) -> tuple[int, int] | None:
    """The two seeds of ``Dataset.shuffle``, both 0 if it has none; None if this is no such.

    ``_seed`` and ``_seed2`` of its class: nothing public tells whether ranks shuffle alike.
    """
    if not hasattr(dataset, "_seed2"):
        return None
    return int(dataset._seed), int(dataset._seed2)


def sharded_by_file(dataset: tf.data.Dataset, index: int, number: int) -> tf.data.Dataset:
    """What a data set makes of every ``number``-th of its files, from ``index`` on.

    ``_AutoShardDataset`` is what ``tf.distribute`` uses: TensorFlow finds the place in the graph
    where the names of files are, and shards there, before a shuffle of the names. Nothing public
    does so without a ``tf.distribute`` strategy.

    Raises:
        tf.errors.OpError: it finds no such place.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return _AutoShardDataset(dataset.with_options(options), number, index)
