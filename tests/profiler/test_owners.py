"""Ops around the units belong to what they serve."""

from __future__ import annotations

import keras
import tensorflow as tf

from ooodist.profiler.owners import Owner
from ooodist.profiler.step import StepToMeasure, trace_step
from tests.profiler.models import batch, dense_chain, with_everything

CHAIN = frozenset(f"chain/{layer}/{part}" for layer in "abc" for part in ("kernel", "bias"))


def owners(traced: StepToMeasure, op_type: str) -> set[Owner | None]:
    graph = traced.step.backward[0].ops[0].graph
    return {traced.owner_of.get(op) for op in graph.get_operations() if op.type == op_type}


def test_adam_belongs_to_the_weight_that_it_updates() -> None:
    traced = trace_step(dense_chain(keras.optimizers.Adam()), batch())
    assert owners(traced, "AssignSubVariableOp") == {frozenset({name}) for name in CHAIN}
    assert owners(traced, "Sqrt") >= {frozenset({name}) for name in CHAIN}


def test_what_needs_all_gradients_belongs_to_all_updates() -> None:
    traced = trace_step(dense_chain(keras.optimizers.SGD(global_clipnorm=1.0)), batch())
    assert CHAIN in owners(traced, "Sqrt")  # the norm


def test_loss_scaling_belongs_to_all_updates() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    traced = trace_step(dense_chain(optimizer), batch())
    assert owners(traced, "If") | owners(traced, "StatelessIf") >= {CHAIN}


def test_random_numbers_belong_to_the_layer_that_draws_them() -> None:
    traced = trace_step(with_everything(), batch())
    drawing = owners(traced, "StatelessRandomUniformV2") | owners(
        traced, "StatelessRandomUniformFullIntV2"
    )
    assert drawing
    assert all(isinstance(owner, str) and owner.startswith("F:") for owner in drawing)


def test_metrics_belong_to_nobody() -> None:
    traced = trace_step(dense_chain(), batch())
    assert owners(traced, "AssignVariableOp") == {None}  # sums of metrics, and the iteration
    assert owners(traced, "ArgMax") == {None}


def test_earlier_batches_of_an_update_belong_to_nobody() -> None:
    one, two = (trace_step(dense_chain(), batch(), accumulate=n) for n in (1, 2))
    products: list[list[Owner | None]] = []
    for traced in (one, two):
        graph = traced.step.backward[0].ops[0].graph
        ops = [op for op in graph.get_operations() if op.type == "MatMul"]
        products.append([traced.owner_of.get(op) for op in ops])
    assert products[1] == [None] * len(products[0]) + products[0]


def test_every_op_of_a_unit_belongs_to_it() -> None:
    traced = trace_step(with_everything(), batch())
    for unit in (*traced.step.forward, *traced.step.backward):
        assert all(traced.owner_of[op] == unit.name for op in unit.ops)
    assert all(isinstance(op, tf.Operation) for op in traced.owner_of)
