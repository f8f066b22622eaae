"""The message in which TensorFlow's profiler writes its recordings."""

from __future__ import annotations

from typing import Any


def new_space() -> Any:
    """An empty ``XSpace``, the protobuf message of an ``*.xplane.pb`` file.

    ``xplane_pb2`` of tensorflow.tsl.profiler.protobuf. The files are documented, but their class is
    not public. If it moves, see where TensorBoard's profiler plug-in finds it, which reads the same
    files.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    return xplane_pb2.XSpace()
