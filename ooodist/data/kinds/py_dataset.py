"""Makes a ``tf.data.Dataset`` of a ``keras.utils.PyDataset``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.errors import UserError


def as_samples(given: keras.utils.PyDataset, name: str) -> tf.data.Dataset:
    """The samples of all batches, in their order.

    Args:
        given: batches (x, y) of one size each; the last may be smaller.
        name: of the function that has made it.

    Raises:
        UserError: it has no length, or yields something else.
    """
    number = given.num_batches
    if not number:
        raise UserError(
            f"data.function {name} returned a PyDataset of {number or 'an unknown number of'} "
            "batches; give it a __len__ of at least 1"
        )
    first, last = (_batch(given, index, name) for index in (0, number - 1))
    signature = tf.nest.map_structure(
        lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), first
    )

    def batches() -> Iterator[Any]:
        for index in range(number):
            yield _batch(given, index, name)

    size, size_of_last = (len(tf.nest.flatten(batch)[0]) for batch in (first, last))
    samples = tf.data.Dataset.from_generator(batches, output_signature=signature).unbatch()
    total = (number - 1) * size + size_of_last
    return samples.apply(tf.data.experimental.assert_cardinality(total))


def _batch(given: keras.utils.PyDataset, index: int, name: str) -> Any:
    batch = given[index]
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UserError(
            f"data.function {name} returned a PyDataset whose batch {index} is a "
            f"{type(batch).__name__}{f' of {len(batch)}' if hasattr(batch, '__len__') else ''}; it "
            "must be a pair (x, y)"
        )
    pair = keras.tree.lists_to_tuples(tuple(batch))
    return tf.nest.map_structure(np.asarray, pair)
