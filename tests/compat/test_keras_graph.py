"""Contracts: what Keras keeps of a functional model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.compat import keras_graph
from tests.compat.contract import Contract


def _nodes() -> None:
    numbers = keras.Input((4,))
    dense = keras.layers.Dense(4, name="shared")
    hidden = keras.ops.relu(dense(numbers))
    model = keras.Model(numbers, dense(hidden))
    nodes = keras_graph.function_nodes(model)
    assert nodes is not None
    assert [node.operation.name for node in nodes[::2]] == ["shared", "shared"]
    assert nodes[1].input_tensors[0] is nodes[0].outputs[0]
    assert nodes[1].arguments.args[0] is nodes[0].outputs[0]
    assert nodes[1].arguments.kwargs == {}
    assert nodes[2].outputs[0] is model.outputs[0]
    assert keras_graph.function_nodes(keras.Function(numbers, hidden)) is not None
    assert keras_graph.function_nodes(keras.Layer()) is None


def _structure() -> None:
    first, second = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    model = keras.Model({"a": first, "b": [second]}, keras.ops.sum(first))
    assert keras.tree.flatten(keras_graph.inputs_structure(model)) == [first, second]
    assert set(keras_graph.inputs_structure(model)) == {"a", "b"}
    function = keras.Function([first], keras.ops.sum(first))
    assert keras_graph.inputs_structure(function) == [first]


def _mask() -> None:
    words = keras.Input((3,), dtype="int32")
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(words)
    symbolic = keras_graph.mask_of(embedded)
    assert (tuple(symbolic.shape), symbolic.dtype) == ((None, 3), "bool")
    tensor = keras.layers.Embedding(5, 2, mask_zero=True)(np.array([[1, 0, 2]]))
    assert keras_graph.mask_of(tensor).numpy().tolist() == [[True, False, True]]
    assert keras_graph.mask_of(tf.zeros([1])) is None


def _set_mask() -> None:
    seen = []

    class Reader(keras.Layer):
        supports_masking = True

        def call(self, inputs: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
            seen.append(mask)
            return inputs

    tensor, mask = tf.ones([1, 3]), tf.constant([[True, False, True]])
    keras_graph.set_mask(tensor, mask)
    assert keras_graph.mask_of(Reader()(tensor)) is mask
    assert seen[0] is mask


CONTRACTS = [
    Contract("Function._nodes_by_depth", "keras", keras_graph.function_nodes, _nodes),
    Contract("Function._inputs_struct", "keras", keras_graph.inputs_structure, _structure),
    Contract("tensor._keras_mask (read)", "keras", keras_graph.mask_of, _mask),
    Contract("tensor._keras_mask (set)", "keras", keras_graph.set_mask, _set_mask),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_keras_keeps(contract: Contract) -> None:
    contract.hold()
