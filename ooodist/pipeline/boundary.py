"""Tensors that go from a stage to the next, and their gradients that come back, as bytes.

Tensors on a GPU are copied to the host first: MPI sends host memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ooodist.schedule.actions import FORWARD


class TensorBoundary:
    """Behind a stage.

    Args:
        specs: of what the stage sends for a micro-batch. Gradients come back for what is of
            floating point.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec]) -> None:
        self.specs = tuple(specs)

    def places(self, kind: str) -> list[np.ndarray]:
        return [
            np.empty(spec.shape.num_elements() * spec.dtype.size, np.uint8)
            for spec in self._specs_of(kind)
        ]

    def pack(self, kind: str, values: Sequence[tf.Tensor]) -> list[np.ndarray]:
        return [as_bytes(tensor) for tensor in values]

    def unpack(self, kind: str, arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
        pairs = zip(arrays, self._specs_of(kind), strict=True)
        return [from_bytes(array, spec) for array, spec in pairs]

    def link_seconds(self, kind: str) -> float:
        return 0.0

    def _specs_of(self, kind: str) -> Sequence[tf.TensorSpec]:
        if kind == FORWARD:
            return self.specs
        return floating(self.specs)


def floating(specs: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Those that have gradients."""
    return [spec for spec in specs if spec.dtype.is_floating]


def as_bytes(tensor: tf.Tensor) -> np.ndarray:
    """The bytes of a tensor, of any dtype; shape (number of bytes,). On a CPU nothing is copied."""
    array = np.asarray(tensor) if tensor.shape.rank else np.asarray(tensor.numpy())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def from_bytes(array: np.ndarray, spec: tf.TensorSpec) -> tf.Tensor:
    """The tensor of such bytes."""
    return tf.convert_to_tensor(array.view(spec.dtype.as_numpy_dtype).reshape(spec.shape))
