"""Converts tensors sent from one stage to the next, and their gradients, to MPI messages and back.

On a CPU nothing is copied: MPI reads the memory of the tensor that is sent, and the memory that it
has received into becomes a tensor. On a GPU, MPI either reads and writes the memory of the GPU
(DLPack; needs a CUDA-aware MPI), or tensors are copied to the host and back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ooodist.engines.devices import wait_for_gpu
from ooodist.graph.ops import num_bytes
from ooodist.pipeline.ranks import Ranks
from ooodist.planner.pipeline.actions import Kind

logger = logging.getLogger("ooodist")

_ALIGNMENT = 64  # bytes; TensorFlow would copy memory that is aligned to less


class TensorBoundary:
    """The boundary after a stage.

    Args:
        specs: specs of what the stage sends for a micro-batch. Gradients are sent back for those
            with a floating-point dtype.
        direct: pass tensors to MPI where they are, also on a GPU.

    Attributes:
        specs, direct: as given.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], *, direct: bool = False) -> None:
        self.specs = tuple(specs)
        self.direct = direct

    def receive_buffers(self, kind: str) -> list[np.ndarray] | list[TensorMemory]:
        """Receive buffers for one message, filled with zeros."""
        specs = self._specs_of(kind)
        if not self.direct:
            return [aligned_zeros(num_bytes(spec)) for spec in specs]
        memories = [TensorMemory(tf.zeros(spec.shape, spec.dtype)) for spec in specs]
        wait_for_gpu()  # operations still queued may use this memory
        return memories

    def pack(self, kind: str, values: Sequence[tf.Tensor]) -> list[np.ndarray] | list[TensorMemory]:
        if not self.direct:
            return [as_bytes(tensor) for tensor in values]
        wait_for_gpu()  # MPI does not know what is still queued
        return [TensorMemory(tensor) for tensor in values]

    def unpack(self, kind: str, arrays: Sequence[Any]) -> list[tf.Tensor]:
        if self.direct:
            return [memory.tensor for memory in arrays]
        pairs = zip(arrays, self._specs_of(kind), strict=True)
        return [from_bytes(array, spec) for array, spec in pairs]

    def link_seconds(self, kind: str) -> float:
        return 0.0

    def num_bytes(self, kind: str) -> int:
        """The size of such a message."""
        return sum(map(num_bytes, self._specs_of(kind)))

    def _specs_of(self, kind: str) -> Sequence[tf.TensorSpec]:
        if kind == Kind.F:
            return self.specs
        return [spec for spec in self.specs if spec.dtype.is_floating]


class TensorMemory:
    """A tensor's memory, on any device, for MPI to read or write."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, stream: object = None) -> Any:
        return tf.experimental.dlpack.to_dlpack(self.tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        device = tf.DeviceSpec.from_string(self.tensor.backing_device)
        return (2, device.device_index) if device.device_type == "GPU" else (1, 0)


def as_bytes(tensor: tf.Tensor) -> np.ndarray:
    """The bytes of a tensor of any dtype, shape (bytes,); no copy on a CPU."""
    array = np.asarray(tensor) if tensor.shape.rank else np.asarray(tensor.numpy())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def from_bytes(array: np.ndarray, spec: tf.TensorSpec) -> tf.Tensor:
    """The tensor with these bytes, which are not copied and must not be changed.

    Args:
        array: shape (bytes,), uint8, aligned as by :func:`aligned_zeros`.
        spec: shape and dtype of the tensor.
    """
    kind = np.dtype(spec.dtype.as_numpy_dtype)
    shaped = array.view(f"u{kind.itemsize}").reshape(spec.shape)
    if kind.isbuiltin == 1:
        return tf.experimental.dlpack.from_dlpack(shaped.view(kind).__dlpack__())
    # bfloat16 and others that NumPy does not export through DLPack.
    return tf.bitcast(tf.experimental.dlpack.from_dlpack(shaped.__dlpack__()), spec.dtype)


def aligned_zeros(num_bytes: int) -> np.ndarray:
    """Zeros of shape (bytes,), uint8, whose memory TensorFlow takes without a copy."""
    room = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    return room[begin : begin + num_bytes]


def is_direct(ranks: Ranks) -> bool:
    """Whether messages go from GPU to GPU, without passing through the host."""
    if not tf.config.get_visible_devices("GPU"):
        return False
    direct = ranks.world.takes_gpu_memory()
    way = "are sent from GPU to GPU" if direct else "go through the host: MPI is not CUDA-aware"
    logger.info("messages between stages %s", way)
    return direct
