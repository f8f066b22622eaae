"""What goes from stage to stage arrives as it was, of every type and shape."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ooodist.pipeline.runtime.boundary import TensorBoundary, as_bytes, from_bytes
from ooodist.planner.pipeline.actions import Kind

SPECS = [tf.TensorSpec((2, 3)), tf.TensorSpec((4,), tf.int32), tf.TensorSpec((1, 2), tf.bfloat16)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (2, 3)])
def test_bytes_are_the_tensor(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).integers(0, 2, shape)
    tensor = tf.cast(tf.constant(values), dtype)
    array = as_bytes(tensor)
    assert array.dtype == np.uint8
    assert array.shape == (tensor.shape.num_elements() * tensor.dtype.size,)
    spec = tf.TensorSpec.from_tensor(tensor)
    (place,) = TensorBoundary([spec]).receive_buffers(Kind.F)
    place[:] = array
    again = from_bytes(place, spec)
    assert again.dtype == tensor.dtype
    np.testing.assert_array_equal(again.numpy(), tensor.numpy())


@pytest.mark.parametrize("kind", [Kind.F, Kind.I])
def test_a_message_arrives_as_it_was(kind: str) -> None:
    """Between two ranks: tests/pipeline/transport_worker.py."""
    boundary = TensorBoundary(SPECS)
    specs = SPECS if kind == Kind.F else [SPECS[0], SPECS[2]]  # integers have no gradient
    values = [tf.cast(tf.random.uniform(spec.shape, 0, 9), spec.dtype) for spec in specs]
    places = boundary.receive_buffers(kind)
    assert boundary.num_bytes(kind) == sum(place.nbytes for place in places)
    for place, array in zip(places, boundary.pack(kind, values), strict=True):
        assert not place.any()
        place[:] = array
    for found, value in zip(boundary.unpack(kind, places), values, strict=True):
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found.numpy(), value.numpy())
    assert boundary.link_seconds(kind) == 0.0


@pytest.mark.parametrize("direct", [False, True])
def test_nothing_is_copied(direct: bool) -> None:
    spec = tf.TensorSpec((100, 1000))
    boundary = TensorBoundary([spec], direct=direct)
    sent = tf.random.normal(spec.shape)
    (packed,) = boundary.pack(Kind.F, [sent])
    (place,) = boundary.receive_buffers(Kind.F)
    (received,) = boundary.unpack(Kind.F, [place])
    before = tf.reduce_sum(received).numpy()
    for tensor, memory in ((sent, packed), (received, place)):
        seen = np.from_dlpack(memory) if direct else memory.view(np.float32).reshape(100, 1000)
        assert np.shares_memory(np.asarray(tensor), seen)
    assert before == 0
