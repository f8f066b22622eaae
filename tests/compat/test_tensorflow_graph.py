"""Contracts: what TensorFlow keeps of a traced graph."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from ooodist.compat import tensorflow_graph
from tests.compat.contract import Contract


def _control_input() -> None:
    @tf.function(autograph=False)
    def step(number: tf.Tensor) -> tf.Tensor:
        first, second = tf.sin(number), tf.cos(number)
        tensorflow_graph.add_control_input(second.op, first.op)
        assert first.op in second.op.control_inputs
        return second

    assert step(tf.constant(0.0)).numpy() == 1.0


def _call() -> None:
    factor = tf.Variable(3.0)

    @tf.function(autograph=False)
    def scaled(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return [factor * tensor for tensor in tensors]

    function = scaled.get_concrete_function(tf.TensorSpec([]), tf.TensorSpec([2]))
    given = [tf.constant(1.0), tf.constant([1.0, 2.0])]
    one, two = tensorflow_graph.call_flat(function, given)
    assert (one.numpy(), two.numpy().tolist()) == (3.0, [3.0, 6.0])
    factor.assign(4.0)
    assert tensorflow_graph.call_flat(function, given)[0].numpy() == 4.0


def _variable() -> None:
    assert tensorflow_graph.is_variable(tf.Variable(1.0))
    assert tensorflow_graph.is_variable(keras.Variable(1.0))
    assert not tensorflow_graph.is_variable(tf.constant(1.0))


def _handle() -> None:
    variable = keras.Variable(1.0)
    assert tensorflow_graph.handle_of(variable) is tensorflow_graph.handle_of(variable.value)
    assert tensorflow_graph.handle_of(variable).dtype == tf.resource


def _captured() -> None:
    variable, outside = tf.Variable(2.0), tf.constant(5.0)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        inner = tensorflow_graph.capture(tensorflow_graph.handle_of(variable))
        product = variable * tensorflow_graph.capture(outside)
        assert product.op.inputs[0].op.inputs[0] is inner
        return product

    function = step.get_concrete_function()
    assert function().numpy() == 10.0
    outer = tensorflow_graph.captures_of(function.graph).values()
    assert {id(tensor) for tensor in outer} == {
        id(outside),
        id(tensorflow_graph.handle_of(variable)),
    }
    assert [id(used) for used in tensorflow_graph.variables_of(function.graph)] == [id(variable)]


def _identity() -> None:
    one, other = tf.Variable(1.0), tf.Variable(1.0)
    names = [tensorflow_graph.identity_of(each) for each in (one, one, other)]
    assert names[0] == names[1] != names[2]


def _independent() -> None:
    made: list[tf.Operation] = []

    @tf.function(autograph=False)
    def step(number: tf.Tensor) -> tf.Tensor:
        made.append((1 // number).op)  # without a state, and unused: left out otherwise
        assert tensorflow_graph.run_independently(made[0])
        return number + 1

    with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
        step(tf.constant(0))
    with tf.Graph().as_default():
        assert not tensorflow_graph.run_independently(tf.constant(1.0).op)


CONTRACTS = [
    Contract(
        "Operation._add_control_input",
        "tensorflow-cpu",
        tensorflow_graph.add_control_input,
        _control_input,
    ),
    Contract("ConcreteFunction._call_flat", "tensorflow-cpu", tensorflow_graph.call_flat, _call),
    Contract("Variable.handle (there)", "tensorflow-cpu", tensorflow_graph.is_variable, _variable),
    Contract("Variable.handle", "tensorflow-cpu", tensorflow_graph.handle_of, _handle),
    Contract("Variable._unique_id", "tensorflow-cpu", tensorflow_graph.identity_of, _identity),
    Contract("FuncGraph.capture", "tensorflow-cpu", tensorflow_graph.capture, _captured),
    Contract("FuncGraph.captures", "tensorflow-cpu", tensorflow_graph.captures_of, _captured),
    Contract("FuncGraph.variables", "tensorflow-cpu", tensorflow_graph.variables_of, _captured),
    Contract(
        "experimental_acd_manager",
        "tensorflow-cpu",
        tensorflow_graph.run_independently,
        _independent,
    ),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_tensorflow_keeps(contract: Contract) -> None:
    contract.hold()
