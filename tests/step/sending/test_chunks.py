"""Tensors that travel together, or in chunks, come out as they went in."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.data_parallel.plan import PlannedExchange
from ooodist.step.sending.chunks import flatten, join, split, unflatten

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5)


@given(SHAPES)
def test_a_bucket_has_each_tensor(shapes: list[list[int]]) -> None:
    random = np.random.default_rng(len(shapes))
    tensors = [tf.constant(random.normal(size=shape), tf.float32) for shape in shapes]
    flat = flatten(tensors)
    assert flat.shape == [sum(map(math.prod, shapes))]
    for tensor, found in zip(tensors, unflatten(flat, shapes), strict=True):
        assert found.shape == tensor.shape
        np.testing.assert_array_equal(found.numpy(), tensor.numpy())


@given(st.integers(1, 8), st.integers(1, 30))
def test_chunks_have_all_elements(parts: int, columns: int) -> None:
    tensor = tf.reshape(tf.range(1024 * columns), [1024, columns])
    chunks = split(tensor, PlannedExchange(("weight",), 0, parts))
    assert len(chunks) == parts
    np.testing.assert_array_equal(join(chunks, tensor.shape).numpy(), tensor.numpy())
