"""The laws of units, on every kind of model, and the cases that once went wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import tensorflow as tf

from ooodist.graph.forward_units import find_forward_units
from ooodist.graph.ops import ancestors
from ooodist.graph.units import Unit, find_backward_units
from tests.graph.models import MODELS, loss_of


class Traced:
    """A model's step, traced once."""

    def __init__(self, name: str) -> None:
        model, inputs, labels = MODELS[name]()
        self.weights = model.trainable_variables
        self.names = [weight.path for weight in self.weights]

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(model, inputs, labels)
            seed = tf.ones_like(loss)
            self.gradients = tape.gradient(loss, self.weights, output_gradients=seed)
            self.seed, self.loss = seed, loss
            self.backward = find_backward_units([seed], self.gradients, self.names)
            graph = tf.compat.v1.get_default_graph()
            handles = [graph.capture(weight.handle) for weight in self.weights]
            self.forward = find_forward_units(loss, handles, self.names)

        self.function = tf.function(step, autograph=False).get_concrete_function()


@pytest.fixture(scope="module", params=MODELS)
def traced(request: pytest.FixtureRequest) -> Traced:
    return Traced(request.param)


def unit(units: Sequence[Unit], name: str) -> Unit:
    """The one unit with this name; layer numbers that Keras counts up do not matter."""
    found = [u for u in units if re.sub(r"_\d+(?=/|$|#|\+|@)", "", u.name).endswith(name)]
    assert len(found) == 1, [u.name for u in units]
    return found[0]


def test_every_op_between_loss_and_gradient_is_in_one_unit(traced: Traced) -> None:
    inside = [op for u in traced.backward for op in u.ops]
    assert len(inside) == len(set(inside))
    needed = ancestors(
        op
        for g in traced.gradients
        for op in ([g.values.op, g.indices.op] if isinstance(g, tf.IndexedSlices) else [g.op])
    )
    depends = {traced.seed.op}
    for op in needed:
        if depends & {*(t.op for t in op.inputs), *op.control_inputs}:
            depends.add(op)
    assert set(inside) == depends & set(needed)


def test_no_unit_needs_a_later_one(traced: Traced) -> None:
    for units in (traced.backward, traced.forward):
        done: set[str] = set()
        for u in units:
            assert u.needs <= done
            done.add(u.name)
        assert len(done) == len(units)  # names are unique


def test_dx_never_waits_for_dw(traced: Traced) -> None:
    kind = {u.name: u.kind for u in traced.backward}
    for u in traced.backward:
        if u.kind == "dX":
            assert {kind[name] for name in u.needs} <= {"dX"}


def test_every_gradient_is_completed_once(traced: Traced) -> None:
    completed = [name for u in traced.backward for name in u.variables]
    assert sorted(completed) == sorted(traced.names)
    size = {
        n: w.shape.num_elements() * 4 for n, w in zip(traced.names, traced.weights, strict=True)
    }
    for u in traced.backward:
        assert u.gradient_bytes == sum(size[name] for name in u.variables)


def test_the_unit_that_completes_a_gradient_computes_it(traced: Traced) -> None:
    for u in traced.backward:
        inside = set(u.ops)
        for name in u.variables:
            gradient = traced.gradients[traced.names.index(name)]
            values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            assert values.op in inside or isinstance(gradient, tf.IndexedSlices)


def test_dw_units_serve_their_own_weights_alone(traced: Traced) -> None:
    for u in traced.backward:
        if u.kind == "dW" and u.variables:
            others = [
                g
                for n, g in zip(traced.names, traced.gradients, strict=True)
                if n not in u.variables and not isinstance(g, tf.IndexedSlices)
            ]
            assert not set(u.ops) & set(ancestors(g.op for g in others))


def test_every_weight_enters_the_forward_pass_once(traced: Traced) -> None:
    entered = [name for u in traced.forward for name in u.variables]
    assert sorted(entered) == sorted(traced.names)


def test_forward_units_hold_forward_ops_alone(traced: Traced) -> None:
    forward = set(ancestors([traced.loss.op]))
    for u in traced.forward:
        assert set(u.ops) <= forward


def test_kernel_and_bias_are_one_unit() -> None:
    backward = Traced("dense_with_dropout").backward
    middle = [u for u in backward if u.kind == "dW"]
    assert [len(u.variables) for u in middle] == [2, 2, 2]
    assert [u.kind for u in backward] == ["dX", "dW", "dX", "dW", "dX", "dW"]


def test_an_early_part_of_a_tied_weight_need_not_wait_for_the_last() -> None:
    backward = Traced("tied_and_shared_weights").backward
    tied = [u for u in backward if u.kind == "dW" and "embedding" in u.name]
    early, last = tied[0], tied[-1]
    assert not early.variables
    assert last.variables
    assert early.layer < last.layer
    assert "MatMul" in {op.type for op in early.ops}


def test_a_recurrent_loop_is_one_op_of_the_dx_path() -> None:
    backward = Traced("recurrent").backward
    loops = [u.kind for u in backward for op in u.ops if "While" in op.type]
    assert len(loops) == 3  # LSTM, and the two directions of the GRU
    assert set(loops) == {"dX"}


def test_a_regularizer_belongs_to_its_weight() -> None:
    backward = Traced("regularized").backward
    for u in backward:
        if u.variables:
            assert u.kind == "dW"


def test_frozen_weights_have_no_unit() -> None:
    traced = Traced("partly_frozen")
    assert len(traced.names) == 4
    # The frozen layers are at the bottom: the backward pass does not reach them.
    assert [u.kind for u in traced.backward] == ["dX", "dW", "dX", "dW"]


def test_names_must_match_the_gradients() -> None:
    traced = Traced("dense_with_dropout")
    with traced.function.graph.as_default(), pytest.raises(ValueError, match="unique names"):
        find_backward_units([traced.seed], traced.gradients, traced.names[:-1])
    with traced.function.graph.as_default(), pytest.raises(ValueError, match="unique names"):
        find_backward_units([traced.seed], traced.gradients, ["same"] * len(traced.names))


def test_ops_with_side_effects_keep_their_order() -> None:
    """TensorFlow chains them as they were created; a unit order that differs would be a cycle."""
    first, second = tf.Variable(1.0, name="first"), tf.Variable(2.0, name="second")
    log = tf.Variable(0.0)

    @tf.custom_gradient
    def noted(x: tf.Tensor):  # its gradient has a side effect
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([log.assign_add(tf.reduce_sum(dy))]):
                return tf.identity(dy)

        return tf.identity(x), gradient

    found: list[Unit] = []

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = noted(first * 3.0) + noted(second * 5.0)
        seed = tf.ones_like(loss)
        gradients = tape.gradient(loss, [first, second], output_gradients=seed)
        found.extend(find_backward_units([seed], gradients, ["first", "second"]))

    tf.function(step, autograph=False).get_concrete_function()
    effects = [(op, u.name) for u in found for op in u.ops if op.type == "AssignAddVariableOp"]
    assert len(effects) == 2
    early_unit, late_unit = (name for _, name in sorted(effects, key=lambda e: e[0].name))
    if early_unit != late_unit:
        position = {u.name: at for at, u in enumerate(found)}
        assert position[early_unit] < position[late_unit]
        assert early_unit in {n for u in found if u.name == late_unit for n in u.needs}
