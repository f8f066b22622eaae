"""Slices of weights: a law for all shapes, and what an optimizer does with one."""

from __future__ import annotations

import math

import keras
import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.step.sharding.slices import SliceOfWeight, slicing_of

SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@given(SHAPES, st.integers(2, 4))
def test_slices_are_rows_of_a_matrix_and_make_up_the_weight(
    shape: tuple[int, ...], count: int
) -> None:
    slicing = slicing_of(shape, count)
    able = [axis for axis, length in enumerate(shape) if length and length % count == 0]
    assert (slicing is None) == (not able)
    if slicing is None or not math.prod(shape):
        return
    assert slicing.axis == able[0]
    weight = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    rows = slicing.rows(tf.constant(weight))
    for rank in range(count):
        assert weight[slicing.at(rank)].shape == slicing.slice_shape
        np.testing.assert_array_equal(rows[rank], weight[slicing.at(rank)].ravel())
    np.testing.assert_array_equal(slicing.whole(rows), weight)


def test_an_optimizer_sets_a_slice_alone() -> None:
    value = np.ones((3, 4), np.float32)
    weight = keras.Variable(value)
    slicing = slicing_of(value.shape, 2)
    assert slicing is not None
    part = SliceOfWeight(weight, slicing, 1)
    part.assign_sub(part * 0.5)
    part.assign_add(tf.ones(part.shape))
    value[:, 2:] = 1.5
    np.testing.assert_array_equal(weight, value)
