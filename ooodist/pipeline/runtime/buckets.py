"""Divides the weights of a rank into buckets, whose gradients replicas sum as one array each.

A sum of its own for each weight would cost as many messages as there are biases; one for all could
begin only when the last W is done::

    layers     kernel bias  kernel bias  kernel bias  kernel bias
    buckets   |----------- 0 -----------|----- 1 -----|---- 2 ----|
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from ooodist.pipeline.runtime.boundary import aligned_zeros, as_bytes, from_bytes
from ooodist.step.sending.chunks import unflatten
from ooodist.step.sharding.state import summed_as


@dataclass(frozen=True, eq=False)
class Bucket:
    """Weights whose gradients are summed together.

    Attributes:
        weights: by name, all of which are summed in one dtype.
        root: the rank among the replicas that gets the sum; None: all get it.
    """

    weights: Mapping[str, keras.Variable]
    root: int | None = None

    @property
    def first(self) -> str:
        """The name of the first weight."""
        return next(iter(self.weights))

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the sum."""
        return summed_as(self.weights[self.first])

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each weight."""
        return [int(np.prod(variable.shape)) for variable in self.weights.values()]

    def empty(self) -> np.ndarray:
        """A flat array for the sum, zeros of shape (all elements,)."""
        return aligned_zeros(sum(self.sizes) * self.dtype.itemsize).view(self.dtype)

    def pack(self, gradients: Sequence[tf.Tensor]) -> np.ndarray:
        """The gradients of the weights, as one flat array of its own memory."""
        flat, begin = self.empty(), 0
        for gradient, size in zip(gradients, self.sizes, strict=True):
            # On a CPU NumPy reads the tensor's own memory: this is the only copy.
            values = as_bytes(gradient).view(gradient.dtype.as_numpy_dtype)
            flat[begin : begin + size] = values
            begin += size
        return flat

    def as_tensor(self, flat: np.ndarray) -> tf.Tensor:
        """The tensor with the memory of such an array, which must not be changed."""
        spec = tf.TensorSpec(flat.shape, tf.as_dtype(self.dtype))
        return from_bytes(flat.view(np.uint8), spec)

    def unpack(self, flat: tf.Tensor) -> list[tf.Tensor]:
        """The weights' parts of such a tensor, in their shapes and dtypes."""
        weights = self.weights.values()
        parts = unflatten(flat, [weight.shape for weight in weights])
        return [tf.cast(part, each.dtype) for part, each in zip(parts, weights, strict=True)]


def by_layer(variables: Iterable[keras.Variable]) -> list[tuple[keras.Variable, ...]]:
    """The weights of each layer that follow each other and are summed in one dtype.

    What computes their gradients stays together: TensorFlow makes one op of a kernel's and a bias's
    where it finds both, which adds up the bias's in another order.
    """

    def key(variable: keras.Variable) -> tuple[str, str]:
        return variable.path.rpartition("/")[0], summed_as(variable).name

    return [tuple(group) for _, group in itertools.groupby(variables, key)]
