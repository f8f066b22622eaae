"""Tensors that go from a stage to the next, and their gradients that come back, as MPI's messages.

On a CPU nothing is copied on the way: MPI reads the memory of the tensor that is sent, and the
memory that it has received into becomes a tensor. On a GPU either MPI reads and writes the memory
of the GPU (DLPack; the MPI must be made for it), or tensors are copied to the host and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ooodist.engines.gpu import wait_for_gpu
from ooodist.graph.ops import num_bytes
from ooodist.planner.pipeline.actions import FORWARD

_ALIGNMENT = 64  # bytes; memory at other places TensorFlow would copy


class TensorBoundary:
    """Behind a stage.

    Args:
        specs: of what the stage sends for a micro-batch. Gradients come back for what is of
            floating point.
        direct: hand tensors to MPI where they are, on a GPU too.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], *, direct: bool = False) -> None:
        self.specs = tuple(specs)
        self._direct = direct

    def receive_buffers(self, kind: str) -> list[np.ndarray] | list[TensorMemory]:
        """Of zeros."""
        specs = self._specs_of(kind)
        if not self._direct:
            return [_zeros(num_bytes(spec)) for spec in specs]
        memories = [TensorMemory(tf.zeros(spec.shape, spec.dtype)) for spec in specs]
        wait_for_gpu()  # what is still to run may write where these are
        return memories

    def pack(self, kind: str, values: Sequence[tf.Tensor]) -> list[np.ndarray] | list[TensorMemory]:
        if not self._direct:
            return [as_bytes(tensor) for tensor in values]
        wait_for_gpu()  # MPI does not know what is still to be computed
        return [TensorMemory(tensor) for tensor in values]

    def unpack(self, kind: str, arrays: Sequence[Any]) -> list[tf.Tensor]:
        if self._direct:
            return [memory.tensor for memory in arrays]
        pairs = zip(arrays, self._specs_of(kind), strict=True)
        return [from_bytes(array, spec) for array, spec in pairs]

    def link_seconds(self, kind: str) -> float:
        return 0.0

    def num_bytes(self, kind: str) -> int:
        """Of such a message."""
        return sum(map(num_bytes, self._specs_of(kind)))

    def _specs_of(self, kind: str) -> Sequence[tf.TensorSpec]:
        if kind == FORWARD:
            return self.specs
        return [spec for spec in self.specs if spec.dtype.is_floating]


class TensorMemory:
    """The memory of a tensor, for MPI to read or to write, wherever it is."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, stream: object = None) -> Any:
        return tf.experimental.dlpack.to_dlpack(self.tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        device = tf.DeviceSpec.from_string(self.tensor.backing_device)
        return (2, device.device_index) if device.device_type == "GPU" else (1, 0)


def as_bytes(tensor: tf.Tensor) -> np.ndarray:
    """The bytes of a tensor, of any dtype; shape (number of bytes,). On a CPU nothing is copied."""
    array = np.asarray(tensor) if tensor.shape.rank else np.asarray(tensor.numpy())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def from_bytes(array: np.ndarray, spec: tf.TensorSpec) -> tf.Tensor:
    """The tensor that has these bytes, which must stay as they are: they are not copied.

    Args:
        array: of shape (number of bytes,); it begins where :func:`_zeros` would have it begin.
        spec: of the tensor.
    """
    kind = np.dtype(spec.dtype.as_numpy_dtype)
    shaped = array.view(f"u{kind.itemsize}").reshape(spec.shape)
    if kind.isbuiltin == 1:
        return tf.experimental.dlpack.from_dlpack(shaped.view(kind).__dlpack__())
    # As bfloat16, which NumPy does not hand on.
    return tf.bitcast(tf.experimental.dlpack.from_dlpack(shaped.__dlpack__()), spec.dtype)


def _zeros(num_bytes: int) -> np.ndarray:
    room = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    return room[begin : begin + num_bytes]
