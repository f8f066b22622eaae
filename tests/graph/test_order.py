"""Orders: what is legal, what first_k is, and that imposing one changes no bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.graph.order import (
    baseline_order,
    carries_edges,
    check_order,
    impose_order,
    movable_layers,
)
from ooodist.graph.units import Unit, find_backward_units
from ooodist.planner.data_parallel.orders import first_k
from tests.graph.models import MODELS, loss_of

Order = Callable[[Sequence[Unit]], Sequence[str]]


def chain(num_layers: int) -> tuple[Unit, ...]:
    """Units of a chain of layers, the last layer's first, as in the docstring of order.py."""
    units = []
    product = SimpleNamespace(type="MatMul")
    for depth in range(1, num_layers + 1):
        layer = num_layers + 1 - depth
        above = frozenset({f"dX{layer + 1}"} if depth > 1 else set())
        units.append(Unit(f"dX{layer}", "dX", (), 0, (product,), above, depth))
        needs = frozenset({f"dX{layer}"})
        units.append(Unit(f"dW{layer}", "dW", (f"w{layer}",), 4, (product,), needs, depth))
    return tuple(units)


def first_k_order(units: Sequence[Unit], k: int) -> tuple[str, ...]:
    """Reverse first-k of traced units."""
    return first_k(baseline_order(units), movable_layers(units), k)


def random_order(seed: int) -> Order:
    """A legal order, each with some probability."""

    def order(units: Sequence[Unit]) -> list[str]:
        chooser = random.Random(seed)
        left = {unit.name: unit for unit in units}
        chosen: list[str] = []
        while left:
            ready = [name for name, unit in left.items() if not unit.needs & set(left)]
            chosen.append(chooser.choice(ready))
            del left[chosen[-1]]
        return chosen

    return order


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (0, "dX3 dW3 dX2 dW2 dX1 dW1"),
        (1, "dX3 dW3 dX2 dW2 dX1 dW1"),
        (2, "dX3 dW3 dX2 dX1 dW1 dW2"),
        (3, "dX3 dX2 dX1 dW1 dW2 dW3"),
    ],
)
def test_first_k_is_what_the_paper_draws(k: int, expected: str) -> None:
    assert " ".join(first_k_order(chain(3), k)) == expected


@pytest.mark.parametrize("k", [-1, 4])
def test_first_k_out_of_range_names_what_is_allowed(k: int) -> None:
    with pytest.raises(UserError, match=rf"k = {k}, .* 3 layers .* from 0 to 3"):
        first_k_order(chain(3), k)


def test_first_k_does_not_count_layers_whose_weight_gradient_costs_nothing() -> None:
    units = list(chain(3))
    light = (SimpleNamespace(type="Mul"),)  # as of a batch norm's gamma
    units[3] = replace(units[3], ops=light)
    assert " ".join(first_k_order(units, 2)) == "dX3 dX2 dW2 dX1 dW1 dW3"
    with pytest.raises(UserError, match="2 layers"):
        first_k_order(units, 3)


@given(st.integers(1, 12), st.data())
def test_first_k_is_always_legal(num_layers: int, data: st.DataObject) -> None:
    units = chain(num_layers)
    check_order(units, first_k_order(units, data.draw(st.integers(0, num_layers))))


@given(st.integers(1, 12), st.integers())
def test_any_order_that_respects_the_data_is_legal(num_layers: int, seed: int) -> None:
    units = chain(num_layers)
    check_order(units, random_order(seed)(units))


@given(st.permutations([unit.name for unit in chain(4)]))
def test_an_order_is_legal_exactly_if_nothing_stands_before_what_it_needs(order: list[str]) -> None:
    units = chain(4)
    broken = [
        (unit.name, needed)
        for unit in units
        for needed in unit.needs
        if order.index(needed) > order.index(unit.name)
    ]
    if not broken:
        check_order(units, order)
        return
    with pytest.raises(UserError) as caught:
        check_order(units, order)
    assert any(repr(a) in str(caught.value) and repr(b) in str(caught.value) for a, b in broken)


def test_a_missing_unit_is_named() -> None:
    with pytest.raises(UserError, match=r"\['dW2'\] are missing"):
        check_order(chain(2), ["dX2", "dX1", "dW1"])


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(UserError, match="no unit 'dW7'"):
        check_order(chain(1), ["dX1", "dW7"])


def test_a_unit_that_stands_twice_is_named() -> None:
    with pytest.raises(UserError, match="'dX1' stands in it twice"):
        check_order(chain(1), ["dX1", "dX1", "dW1"])


class Trained:
    """Ten steps of a model, always from the same start: the first gradients, the last weights."""

    def __init__(self, name: str) -> None:
        keras.utils.set_random_seed(11)
        self.model, self._inputs, self._labels = MODELS[name]()
        self._start = [variable.numpy() for variable in self.model.variables]
        self.num_edges = 0

    def run(self, order: Order | None, at_a_time: int = 1) -> list[np.ndarray]:
        """In this order, or as TensorFlow orders it."""
        for variable, value in zip(self.model.variables, self._start, strict=True):
            variable.assign(value)
        self.num_edges = 0
        weights = [variable.value for variable in self.model.trainable_variables]

        def step() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = loss_of(self.model, self._inputs, self._labels)
            if order is None:
                gradients = tape.gradient(loss, weights)
            else:
                seed = tf.ones_like(loss)
                gradients = tape.gradient(loss, weights, output_gradients=seed)
                paths = [variable.path for variable in self.model.trainable_variables]
                units = find_backward_units([seed], gradients, paths)
                self.num_edges += impose_order(units, order(units), at_a_time)
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(0.1 * gradient)
            return gradients

        function = tf.function(step, autograph=False)
        first = [gradient.numpy() for gradient in function()]
        for _ in range(9):
            function()
        return [*first, *(variable.numpy() for variable in self.model.variables)]


def halfway(units: Sequence[Unit]) -> Sequence[str]:
    layers = {u.layer for u in units if u.kind == "dW" and u.variables and carries_edges(u)}
    return first_k_order(units, (len(layers) + 1) // 2)


class MadeUpOp:
    """An op of a graph, as far as imposing an order looks at it."""

    def __init__(self, kind: str = "MatMul", after: Sequence[MadeUpOp] = ()) -> None:
        self.type = kind
        self.inputs: list[Any] = []
        self.control_inputs: list[MadeUpOp] = list(after)

    def _add_control_input(self, op: MadeUpOp) -> None:
        self.control_inputs.append(op)


def made_up_ops(kinds: Sequence[str]) -> tuple[MadeUpOp, ...]:
    """One after the other."""
    ops: list[MadeUpOp] = []
    for kind in kinds:
        ops.append(MadeUpOp(kind, ops[-1:]))
    return tuple(ops)


@given(
    st.integers(1, 12),
    st.integers(1, 30),
    st.sampled_from([["MatMul"], ["MatMul", "MatMul"], ["Mul", "MatMul", "Mul", "MatMul", "Mul"]]),
    st.integers(),
)
def test_a_unit_waits_for_all_before_it_but_the_last_few(
    num_layers: int, at_a_time: int, kinds: list[str], seed: int
) -> None:
    """Its first heavy op does, for the last heavy one of each."""
    units = [replace(unit, ops=made_up_ops(kinds)) for unit in chain(num_layers)]  # type: ignore[arg-type]
    ops_of: dict[str, Any] = {unit.name: unit.ops for unit in units}
    heavy = {op for ops in ops_of.values() for op in ops if op.type == "MatMul"}
    order = random_order(seed)(units)
    impose_order(units, order, at_a_time)
    before: dict[MadeUpOp, set[MadeUpOp]] = {}
    for at, name in enumerate(order):
        for op in ops_of[name]:
            before[op] = set(op.control_inputs).union(*(before[each] for each in op.control_inputs))
        first = next(op for op in ops_of[name] if op in heavy)
        awaited = {op for other in order[: max(0, at + 1 - at_a_time)] for op in ops_of[other]}
        assert before[first] & heavy == awaited & heavy


@pytest.mark.parametrize("name", MODELS)
def test_no_order_changes_a_bit(name: str) -> None:
    trained = Trained(name)
    plain = trained.run(None)
    assert any(np.any(each) for each in plain[: len(trained.model.trainable_variables)])
    orders: list[tuple[int, Order]] = [(1, halfway), (1, random_order(2))]
    if name in ("convolution_with_batch_norm", "tied_and_shared_weights"):  # less is imposed
        orders += [(1, baseline_order), (2, random_order(1))]
    for at_a_time, order in orders:
        ordered = trained.run(order, at_a_time)
        assert trained.num_edges > 0
        for ours, theirs in zip(ordered, plain, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_an_illegal_order_is_refused_before_any_edge_is_added() -> None:
    trained = Trained("dense_with_dropout")
    with pytest.raises(UserError, match="whose result it needs"):
        trained.run(lambda units: list(reversed(baseline_order(units))))
