"""Gradients are added to their accumulators, a large one before the next is computed."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from ooodist.graph.accumulation import LARGE, accumulate
from ooodist.graph.ops import ancestors
from tests.thorough import few

ROWS, WIDTH = 1024, LARGE // 4 // 1024  # a gradient of LARGE bytes


def accumulators(*shapes: tuple[int, ...]) -> list[tf.Variable]:
    return [tf.Variable(tf.ones(shape)) for shape in shapes]


def test_a_large_gradient_waits_until_the_one_before_is_added() -> None:
    found = accumulators((ROWS, WIDTH), (WIDTH,), (ROWS, WIDTH), (ROWS, WIDTH))

    def run(left: tf.Tensor, right: tf.Tensor) -> None:
        products = [tf.matmul(left * float(n), right, transpose_a=True) for n in range(1, 4)]
        # The accumulators need not be in the order in which the gradients are made.
        accumulate([products[2], tf.reduce_sum(right, 0), products[0], products[1]], found)

    left, right = tf.ones((2, ROWS)), tf.ones((2, WIDTH))
    concrete = tf.function(run, autograph=False).get_concrete_function(left, right)
    products = [op for op in concrete.graph.get_operations() if op.type == "MatMul"]
    assert len(products) == 3
    for before, after in itertools.pairwise(products):
        added = [o for o in ancestors([after]) if o.type == "AssignAddVariableOp"]
        assert any(o.inputs[1] is before.outputs[0] for o in added)
    small = next(op for op in concrete.graph.get_operations() if op.type == "Sum")
    assert not any(op.type == "MatMul" for op in ancestors([small]))
    for _ in range(2):
        concrete(left, right)
    for variable, expected in zip(found, (13, 5, 5, 9), strict=True):
        np.testing.assert_array_equal(variable.numpy(), np.full(variable.shape, expected))


@few(10)
@given(st.lists(st.booleans(), min_size=2, max_size=6))
@example([True, False, True])
def test_a_large_gradient_waits_for_all_large_ones_before_it(is_large: list[bool]) -> None:
    """Whatever small ones are made in between."""
    found = accumulators(*((ROWS, WIDTH) if large else (ROWS, 1) for large in is_large))

    def run(left: tf.Tensor, rows: tf.Tensor) -> None:
        rights = [tf.zeros((2, variable.shape[1])) for variable in found]
        accumulate([tf.matmul(left, right, transpose_a=True) for right in rights], found)

    traced = tf.function(run, autograph=False)
    graph = traced.get_concrete_function(tf.ones((2, ROWS)), tf.ones((2, WIDTH))).graph
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    for number, product in enumerate(products):
        before = {o.inputs[1].op for o in ancestors([product]) if o.type == "AssignAddVariableOp"}
        large = [p for p, yes in zip(products[:number], is_large, strict=False) if yes]
        assert before == set(large if is_large[number] else [])


def test_what_several_gradients_need_waits_for_none() -> None:
    """A cycle otherwise: the second gradient's input is made of the first."""
    found = accumulators((ROWS, WIDTH), (ROWS, WIDTH))

    def run(given: tf.Tensor) -> None:
        first = given * 2.0
        accumulate([first + 1.0, tf.sin(first)], found)

    run_traced = tf.function(run, autograph=False)
    run_traced(tf.zeros((ROWS, WIDTH)))
    np.testing.assert_array_equal(found[0].numpy(), np.full((ROWS, WIDTH), 2.0))
    np.testing.assert_array_equal(found[1].numpy(), np.ones((ROWS, WIDTH)))


def test_a_gradient_that_is_made_of_another() -> None:
    found = accumulators((ROWS, WIDTH), (ROWS, WIDTH))

    def run(given: tf.Tensor) -> None:
        first = given + 1.0
        accumulate([first * 3.0, first], found)

    tf.function(run, autograph=False)(tf.zeros((ROWS, WIDTH)))
    np.testing.assert_array_equal(found[0].numpy()[0], np.full(WIDTH, 4.0))
    np.testing.assert_array_equal(found[1].numpy()[0], np.full(WIDTH, 2.0))


def test_rows_and_nothing() -> None:
    """A row that occurs twice counts twice; a weight without a gradient stays."""
    found = accumulators((ROWS, WIDTH), (3,), (ROWS, WIDTH))

    def run(values: tf.Tensor, whole: tf.Tensor) -> None:
        rows = tf.IndexedSlices(values * 2.0, tf.constant([1, 1]), tf.constant([ROWS, WIDTH]))
        accumulate([rows, None, whole * 2.0], found)

    tf.function(run, autograph=False)(tf.ones((2, WIDTH)), tf.ones((ROWS, WIDTH)))
    assert [float(found[0][row, 0]) for row in range(3)] == [1, 5, 1]
    np.testing.assert_array_equal(found[1].numpy(), np.ones(3))
    np.testing.assert_array_equal(found[2].numpy(), np.full((ROWS, WIDTH), 3.0))
