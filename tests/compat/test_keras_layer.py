"""Contracts: what Keras keeps in a layer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.compat import keras_layer
from tests.compat.contract import Contract


class _Block(keras.Layer):
    """A dense layer and a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.scale = self.add_weight(shape=(2,), name="scale")
        self.count = self.add_weight(shape=(), name="count", trainable=False)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(inputs) * self.scale


def _block() -> _Block:
    block = _Block()
    block(tf.ones([1, 3]))
    return block


def _origin() -> None:
    assert keras_layer.is_from_keras(keras.layers.Dense(2))
    assert keras_layer.is_from_keras(keras.metrics.Mean())
    assert not keras_layer.is_from_keras(_Block())


def _variables() -> None:
    block = _block()
    assert keras_layer.own_variables(block) == [block.scale, block.count]


class _Asking(keras.Layer):
    def __init__(self) -> None:
        super().__init__(name="asking")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        _ASKED.append(keras_layer.infers_shapes())
        return inputs + 1.0


_ASKED: list[bool] = []


def _inferring() -> None:
    _ASKED.clear()
    asking = _Asking()
    asking(keras.Input((2,)))
    asking(tf.zeros([1, 2]))
    tf.function(asking, autograph=False)(tf.zeros([1, 2]))
    assert _ASKED == [True, False, False]


def _layers() -> None:
    block = _block()
    assert keras_layer.own_layers(block) == [block.dense]
    assert keras_layer.own_layers(block.dense) == []


def _shapes() -> None:
    shapes = list(keras_layer.shapes_at_build(_block()).values())
    assert [tuple(shape) for shape in shapes] == [(1, 3)]


def _table() -> None:
    layer = keras.layers.Embedding(5, 4)
    layer.build()
    assert keras_layer.embedding_table(layer) is layer.weights[0]
    layer.enable_lora(2)
    assert tuple(keras_layer.embedding_table(layer).shape) == (5, 4)


def _axes() -> None:
    layer = keras.layers.BatchNormalization(axis=1)
    layer.build((None, 3, 8))
    assert list(keras_layer.reduction_axes(layer)) == [0, 2]


def _moments() -> None:
    layer = keras.layers.BatchNormalization(epsilon=0.0, center=False, scale=False)
    inputs = np.array([[1.0], [3.0]], np.float32)
    masks = []

    def moments(inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        masks.append(mask)
        return tf.zeros([1]), 4 * tf.ones([1])

    with keras_layer.replaced_moments(layer, moments):
        inside = layer(inputs, training=True)
    assert inside.numpy().tolist() == [[0.5], [1.5]]
    assert masks == [None]
    after = layer(inputs, training=True).numpy()
    np.testing.assert_allclose(after, [[-1.0], [1.0]], rtol=1e-6)


def _inner_loop() -> None:
    layer = keras.layers.SimpleRNN(2)
    called = []

    def loop(plain: Any, sequences: Any, initial_state: Any, mask: Any, training: bool) -> Any:
        called.append((tuple(sequences.shape), len(initial_state), mask, training))
        last, outputs, states = plain(sequences, initial_state, mask=mask, training=training)
        return 2 * last, outputs, states

    inputs = tf.ones([1, 3, 4])
    before = layer(inputs)
    keras_layer.replace_inner_loop(layer, loop)
    np.testing.assert_array_equal(layer(inputs, training=True), 2 * before)
    assert called == [((1, 3, 4), 1, None, True)]


def _rnn() -> None:
    def step(inputs: Any, states: Any) -> Any:
        (total,) = states
        return (total + inputs, total), [total + inputs]

    inputs = tf.reshape(tf.range(4.0), [1, 4, 1])
    for backwards, sums in ((False, [0, 1, 3, 6]), (True, [3, 5, 6, 6])):
        last, outputs, states = keras_layer.rnn(
            step, inputs, [tf.zeros([1, 1])], go_backwards=backwards, return_all_outputs=True
        )
        assert [each.numpy().ravel().tolist() for each in outputs] == [sums, [0, *sums[:-1]]]
        assert [float(each[0, 0]) for each in last] == [sums[-1], sums[-2]]
        assert float(states[0][0, 0]) == sums[-1]


class _Seeds(keras.random.SeedGenerator):
    def __init__(self) -> None:
        super().__init__(0)
        self.drawn = 0

    def next(self, ordered: bool = True) -> tf.Tensor:
        self.drawn += 1
        return tf.constant([1, self.drawn], tf.int64)


def _seeds() -> None:
    x = tf.random.stateless_uniform((1, 8, 8, 3), [1, 2])
    noise = keras.layers.GaussianNoise(0.5)
    for layer in (keras.layers.RandAugment(), keras.layers.RandomFlip(), noise):
        results = []
        for _ in range(2):
            seeds = _Seeds()
            keras_layer.draw_from(layer, seeds)
            results.append(layer(x, training=True).numpy())
            assert seeds.drawn, layer
        np.testing.assert_array_equal(*results)


def _symbols() -> None:
    class Cached(keras.layers.MultiHeadAttention):  # type: ignore[misc, unused-ignore]
        def call(self, query: Any, value: Any, key: Any = None, cache: Any = None) -> Any:
            return super().call(query, value, key)

    class Block(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.attention = Cached(2, 3)

    block, symbol = Block(), keras.KerasTensor((2, 5, 4))
    block.attention.build((2, 5, 4), (2, 5, 4))
    with pytest.raises(TypeError, match="unexpected keyword argument 'cache'"):
        block.attention(symbol, symbol, cache=None)
    with keras_layer.taking_symbols(block):
        made = block.attention(symbol, symbol, cache=None)
    assert tuple(made.shape) == (2, 5, 4)
    assert "compute_output_spec" not in vars(block.attention)


CONTRACTS = [
    Contract("keras.src", "keras", keras_layer.is_from_keras, _origin),
    Contract("Layer._trainable_variables", "keras", keras_layer.own_variables, _variables),
    Contract("in_symbolic_scope", "keras", keras_layer.infers_shapes, _inferring),
    Contract("Layer._layers", "keras", keras_layer.own_layers, _layers),
    Contract("Layer._build_shapes_dict", "keras", keras_layer.shapes_at_build, _shapes),
    Contract("Embedding._embeddings", "keras", keras_layer.embedding_table, _table),
    Contract("BatchNormalization._reduction_axes", "keras", keras_layer.reduction_axes, _axes),
    Contract("BatchNormalization._moments", "keras", keras_layer.replaced_moments, _moments),
    Contract("RNN.inner_loop", "keras", keras_layer.replace_inner_loop, _inner_loop),
    Contract("BaseImagePreprocessingLayer.generator", "keras", keras_layer.draw_from, _seeds),
    Contract("Layer._flatten_layers", "keras", keras_layer.taking_symbols, _symbols),
    Contract("keras.src.backend.rnn", "keras", keras_layer.rnn, _rnn),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_keras_keeps(contract: Contract) -> None:
    contract.hold()
