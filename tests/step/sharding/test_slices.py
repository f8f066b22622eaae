"""Slices of weights: a law for all shapes, and what an optimizer does with one."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.compat.keras_deferred import (
    build_without_values,
    has_value,
    initial_value,
    initialize,
    train_those_with_values,
    with_values,
)
from ooodist.step.sharding.sharded import ELEMENT_BY_ELEMENT
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


@pytest.mark.parametrize("kind", ELEMENT_BY_ELEMENT, ids=lambda kind: kind.__name__)
def test_slices_are_updated_as_the_whole(kind: type[keras.optimizers.Optimizer]) -> None:
    numbers = np.random.default_rng(1)
    value, *gradients = numbers.normal(size=(4, 6, 7)).astype(np.float32)
    slicing = slicing_of(value.shape, 2)
    assert slicing is not None
    whole, weight = keras.Variable(value), keras.Variable(value)
    optimizer = kind(0.1, weight_decay=0.01)
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)], [whole])
    for rank in range(slicing.count):
        optimizer = kind(0.1, weight_decay=0.01)
        build_without_values(optimizer, [weight])
        train_those_with_values(optimizer, [weight])
        own = []
        for slot in [each for each in optimizer.variables if not has_value(each)]:
            if len(slot.shape):
                own.append((slot, tf.Variable(initial_value(slot, slicing.slice_shape))))
            else:
                initialize(slot)
        with with_values(own):
            for gradient in gradients:
                part = tf.constant(gradient[slicing.at(rank)])
                optimizer.apply([part], [SliceOfWeight(weight, slicing, rank)])
    np.testing.assert_array_equal(weight, whole)
    assert not np.array_equal(whole, value)
