"""Slices of weights: of each weight, every rank updates one, all of a size, along one axis.

A gradient whose weight is sliced travels as a matrix with a row for each rank, which has that
rank's slice. Buckets join such matrices side by side, and chunks are columns of one::

              weight a   weight b               chunk 0   chunk 1
    rank 0   | a0 a0 a0 | b0 b0 |      rank 0  | a0 a0   | a0 a0
    rank 1   | a1 a1 a1 | b1 b1 |      rank 1  | a1 a1   | a1 a1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat.tensorflow_graph import identity_of


@dataclass(frozen=True)
class Slicing:
    """How the elements of a weight are divided.

    Attributes:
        shape: that of the weight.
        axis: along which it is sliced.
        count: number of slices, which divides the length of the axis.
    """

    shape: tuple[int, ...]
    axis: int
    count: int

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """The shape of a slice."""
        return tuple(
            length // self.count if axis == self.axis else length
            for axis, length in enumerate(self.shape)
        )

    @property
    def size(self) -> int:
        """The number of elements of a slice."""
        return math.prod(self.slice_shape)

    def at(self, rank: int) -> tuple[slice, ...]:
        """Where in the weight, or an array of its shape, a rank's slice is."""
        length = self.shape[self.axis] // self.count
        return (*[slice(None)] * self.axis, slice(rank * length, (rank + 1) * length))

    def rows(self, whole: tf.Tensor) -> tf.Tensor:
        """The matrix with a slice in each row, of a tensor of the weight's shape."""
        before = math.prod(self.shape[: self.axis])
        parts = tf.reshape(whole, [before, self.count, -1])
        if before > 1:
            parts = tf.transpose(parts, [1, 0, 2])
        return tf.reshape(parts, [self.count, self.size])

    def whole(self, rows: tf.Tensor) -> tf.Tensor:
        """The tensor of the weight's shape with these slices."""
        before = math.prod(self.shape[: self.axis])
        if before > 1:
            rows = tf.transpose(tf.reshape(rows, [self.count, before, -1]), [1, 0, 2])
        return tf.reshape(rows, self.shape)


def slicing_of(shape: Sequence[int], count: int) -> Slicing | None:
    """How a weight is divided: along its first axis that can be; None if none can."""
    for axis, length in enumerate(shape):
        if length and length % count == 0:
            return Slicing(tuple(shape), axis, count)
    return None


class SliceOfWeight:
    """A rank's slice of a weight, for what an optimizer does with a variable in a step.

    It reads and assigns the slice in the weight's own memory. Keras' optimizers take it for a
    ``tf.Variable``, and know it by the identity of the weight.
    """

    constraint = None  # weights with one are not sliced

    def __init__(self, weight: keras.Variable, slicing: Slicing, rank: int) -> None:
        self._weight = weight.value
        self._at = slicing.at(rank)
        self._unique_id = identity_of(self._weight)
        self.name = weight.name
        self.dtype = self._weight.dtype
        self.shape = tf.TensorShape(slicing.slice_shape)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return self._weight[self._at]

    def __mul__(self, other: Any) -> tf.Tensor:
        return tf.convert_to_tensor(self) * other

    def __sub__(self, other: Any) -> tf.Tensor:
        return tf.convert_to_tensor(self) - other

    def assign(self, value: Any) -> None:
        """Sets the slice."""
        self._weight[self._at].assign(value)

    def assign_sub(self, value: Any) -> None:
        """Subtracts from the slice."""
        self.assign(self - value)

    def assign_add(self, value: Any) -> None:
        """Adds to the slice."""
        self.assign(tf.convert_to_tensor(self) + value)
