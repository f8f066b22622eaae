"""Updates in turn: the same numbers, one weight's temporary values at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.graph.ops import ancestors
from ooodist.step.update_order import LARGE, one_after_the_other

ROWS = LARGE // 4 // 256
OPTIMIZERS = [
    lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    lambda: keras.optimizers.Adam(0.1, weight_decay=0.01, clipnorm=1.0),
    lambda: keras.optimizers.Adam(0.1, amsgrad=True, use_ema=True, ema_overwrite_frequency=2),
    lambda: keras.optimizers.Adafactor(0.1),
    lambda: keras.optimizers.Lion(0.1),
]


def weights() -> list[keras.Variable]:
    random = np.random.default_rng(3)
    shapes = [(ROWS, 256), (16,), (ROWS, 257), (ROWS + 1, 256), (8, 8)]
    return [keras.Variable(random.normal(size=shape).astype("float32")) for shape in shapes]


def gradients(step: int) -> list[tf.Tensor]:
    random = np.random.default_rng(step)
    return [tf.constant(random.normal(size=v.shape).astype("float32")) for v in weights()]


def trained(optimizer: keras.optimizers.Optimizer, in_turn: bool) -> list[np.ndarray]:
    variables = weights()
    optimizer.build(variables)

    def update(*given: tf.Tensor) -> None:
        with one_after_the_other(optimizer) if in_turn else contextlib.nullcontext():
            optimizer.apply(list(given), variables)

    traced = tf.function(update, autograph=False)
    for step in range(3):
        traced(*gradients(step))
    return [v.numpy() for v in (*variables, *optimizer.variables)]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_numbers_stay(make: Callable[[], keras.optimizers.Optimizer]) -> None:
    found, expected = trained(make(), in_turn=True), trained(make(), in_turn=False)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_each_large_weight_waits_for_the_large_one_before() -> None:
    optimizer, variables = keras.optimizers.Adam(0.1), weights()
    optimizer.build(variables)

    def update(*given: tf.Tensor) -> None:
        with one_after_the_other(optimizer):
            optimizer.apply(list(given), variables)

    graph = tf.function(update, autograph=False).get_concrete_function(*gradients(0)).graph
    handles = {capture.name: outer for outer, capture in graph.captures}
    updates = [op for op in graph.get_operations() if op.type == "AssignSubVariableOp"]
    order = [
        next(n for n, v in enumerate(variables) if handles[op.inputs[0].name] is v.value.handle)
        for op in updates
    ]
    assert order == [0, 1, 2, 3, 4]
    waits = [{o for o in updates if o in ancestors([op])} for op in updates]
    assert [len(those) - 1 for those in waits] == [0, 0, 1, 2, 0]


def test_what_was_set_before_stays() -> None:
    optimizer = keras.optimizers.SGD(1.0)
    with one_after_the_other(optimizer):
        pass
    assert "update_step" not in vars(optimizer)
    called: list[int] = []

    def counted(gradient: Any, variable: Any, learning_rate: Any) -> None:
        called.append(1)
        type(optimizer).update_step(optimizer, gradient, variable, learning_rate)

    optimizer.update_step = counted
    variables = weights()
    optimizer.build(variables)

    def update(*given: tf.Tensor) -> None:
        with one_after_the_other(optimizer):
            optimizer.apply(list(given), variables)

    tf.function(update, autograph=False)(*gradients(0))
    assert optimizer.update_step is counted
    assert len(called) == len(variables)
