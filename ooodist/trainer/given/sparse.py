"""Takes samples out of arrays of any kind: sparse and ragged ones have no rows to index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import tensorflow as tf


def rows_of(array: Any, rows: slice) -> Any:
    """Some samples of an array, a tensor or a scipy matrix of shape (samples, ...)."""
    if scipy.sparse.issparse(array):
        return array.tocsr()[rows]
    if isinstance(array, tf.SparseTensor | tf.RaggedTensor):
        return reader(array)(tf.constant(np.arange(int(array.shape[0]))[rows]))
    if tf.is_tensor(array):  # NumPy would make objects of strings, which Keras does not take
        return array[rows]
    return np.asarray(array)[rows]


def as_tensor(array: Any) -> Any:
    """A tensor; a sparse or ragged one where the array is."""
    if isinstance(array, tf.SparseTensor | tf.RaggedTensor):
        return array
    if not scipy.sparse.issparse(array):
        return tf.convert_to_tensor(array)
    listed = array.tocoo()
    places = np.stack([listed.row, listed.col], axis=1).astype(np.int64)
    return tf.sparse.reorder(tf.SparseTensor(places, listed.data, listed.shape))


def reader(array: Any) -> Callable[[tf.Tensor], Any]:
    """What takes samples by their numbers, also in a graph."""
    tensor = as_tensor(array)
    if not isinstance(tensor, tf.SparseTensor):
        return lambda numbers: tf.gather(tensor, numbers)
    # As Keras does: of each sample, what is not zero, and where.
    tensor = tf.sparse.reorder(tensor)
    samples = tensor.indices[:, 0], tensor.dense_shape[0]
    places = tf.RaggedTensor.from_value_rowids(tensor.indices[:, 1:], *samples)
    values = tf.RaggedTensor.from_value_rowids(tensor.values, *samples)
    shape = tensor.shape[1:]

    def read(numbers: tf.Tensor) -> tf.SparseTensor:
        taken = tf.gather(places, numbers)
        row = tf.expand_dims(taken.value_rowids(), 1)
        count = numbers.shape[0] or tf.size(numbers, tf.int64)
        return tf.SparseTensor(
            tf.concat([row, taken.flat_values], axis=1),
            tf.gather(values, numbers).flat_values,
            (count, *shape),
        )

    return read
