"""Each kind of layer: a wider model, and one with larger kernels, compute what their parent does.

The widths are no multiples of each other, but for norms over units: these take a mean, which stays
what it was only if each unit is there as often as the others.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from ooodist.models.layers import PaddedShortcut
from ooodist.transfer.graph.keras_graph import graph_of
from tests.transfer.models import (
    CLASSES,
    SAME,
    VOCABULARY,
    chain,
    difference,
    head,
    images,
    in_order,
    randomize,
    sequences,
    squeezed,
    tokens,
    vectors,
    warm,
)

Builder = Callable[[int], keras.Model]


def pixels_to_classes(*parts: Any) -> keras.Model:
    """An image model that ends in a pooling and a Dense."""
    pool = layers.GlobalAveragePooling2D()
    return chain(*parts, pool, layers.Dense(CLASSES), shape=(8, 8, 3))


def steps_to_classes(*parts: Any) -> keras.Model:
    pool = layers.GlobalAveragePooling1D()
    return chain(*parts, pool, layers.Dense(CLASSES), shape=(5, 6))


def with_conv3d(width: int) -> keras.Model:
    return chain(
        layers.Conv3D(width, 3, padding="same", activation="relu"),
        layers.MaxPooling3D(),
        layers.Conv3DTranspose(width + 1, 2, strides=2),
        layers.GlobalAveragePooling3D(),
        layers.Dense(CLASSES),
        shape=(4, 4, 4, 2),
    )


def with_conv1d(width: int) -> keras.Model:
    return steps_to_classes(
        layers.Conv1D(width, 3, padding="causal", activation="relu"),
        layers.DepthwiseConv1D(3, padding="same"),
        layers.SeparableConv1D(width + 1, 2),
        layers.Conv1DTranspose(width, 3, strides=2),
        layers.LeakyReLU(),
    )


def with_depthwise(width: int) -> keras.Model:
    return pixels_to_classes(
        layers.Conv2D(width, 3),
        layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, activation="relu"),
        layers.BatchNormalization(),
        layers.SeparableConv2D(width + 2, 3, depth_multiplier=2, activation="relu"),
        layers.DepthwiseConv2D(3, strides=2),
    )


def with_depthwise_by_groups(width: int) -> keras.Model:
    return pixels_to_classes(
        layers.Conv2D(width, 3),
        layers.Conv2D(2 * width, 3, groups=width, activation="relu"),
        layers.Conv2D(2 * width, 3, groups=2 * width, use_bias=False),
    )


def with_transposed(width: int) -> keras.Model:
    return pixels_to_classes(
        layers.Conv2DTranspose(width, 3, strides=2, padding="same", activation="relu"),
        layers.UpSampling2D(),
        layers.Conv2DTranspose(width + 1, 2),
        layers.ZeroPadding2D(),
        layers.Cropping2D(2),
    )


def with_prelu(width: int) -> keras.Model:
    return pixels_to_classes(
        layers.Conv2D(width, 3),
        layers.PReLU(),
        layers.Conv2D(width, 3),
        layers.PReLU(shared_axes=[1, 2]),
    )


def with_dense(width: int) -> keras.Model:
    return chain(
        layers.Dense(width, activation="tanh"),
        layers.Dropout(0.5),
        layers.BatchNormalization(),
        layers.Dense(width + 1, activation="gelu", use_bias=False),
        layers.BatchNormalization(scale=False, center=False),
        layers.GaussianNoise(0.5),
        layers.Dense(CLASSES, activation="softmax"),
        shape=(6,),
    )


def with_einsum_dense(width: int) -> keras.Model:
    return chain(
        layers.EinsumDense("abc,cd->abd", (None, width), activation="relu", bias_axes="d"),
        layers.EinsumDense("...x,xy->...y", width + 1),
        layers.GlobalAveragePooling1D(),
        layers.Dense(CLASSES),
        shape=(5, 6),
    )


def with_noise(width: int) -> keras.Model:
    return pixels_to_classes(
        layers.Conv2D(width, 3),
        layers.SpatialDropout2D(0.5),
        layers.AlphaDropout(0.5),
        layers.Activation("linear"),
        layers.Conv2D(width, 3),
        layers.ELU(),
    )


def with_flatten(width: int) -> keras.Model:
    return chain(
        layers.Conv2D(width, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.BatchNormalization(),
        layers.Dense(width, activation="relu"),
        layers.Dense(CLASSES),
        shape=(8, 8, 3),
    )


def with_reshape(width: int) -> keras.Model:
    return chain(
        layers.Conv2D(width, 3),
        layers.Reshape((36, width)),
        layers.Permute((1, 2)),
        layers.Conv1D(width, 1, activation="relu"),
        layers.Reshape((36 * width,)),
        layers.Dense(width),
        layers.RepeatVector(3),
        layers.SimpleRNN(width),
        layers.Dense(CLASSES),
        shape=(8, 8, 3),
    )


def recurrent(kind: Callable[..., Any], **settings: Any) -> Builder:
    def build(width: int) -> keras.Model:
        return chain(
            layers.Embedding(VOCABULARY, width),
            kind(width, return_sequences=True),
            kind(width + 3, **settings),
            layers.Dense(CLASSES),
            shape=(7,),
            dtype="int32",
        )

    return build


def with_state(width: int) -> keras.Model:
    """An encoder whose state a decoder begins with."""
    source, target = keras.Input((5, 6)), keras.Input((5, 6))
    _, hidden, cell = layers.LSTM(width, return_state=True)(source)
    x = layers.LSTM(width, return_sequences=True)(target, initial_state=[hidden, cell])
    return keras.Model([source, target], [layers.Dense(CLASSES)(x), layers.Dense(2)(hidden)])


def with_squeeze_and_excite(width: int) -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(width, 3, activation="relu")(inputs)
    return keras.Model(inputs, head(squeezed(x, width)))


def with_concatenation(width: int) -> keras.Model:
    """Of several, of one twice, along pixels too, added to something whole."""
    inputs = keras.Input((8, 8, 3))
    one = layers.Conv2D(width, 1, activation="relu")(inputs)
    two = layers.Conv2D(width + 1, 3, padding="same")(inputs)
    x = layers.Concatenate()([one, two, one, inputs])
    x = layers.BatchNormalization()(x)
    x = layers.Add()([x, layers.Conv2D(3 * width + 4, 1)(inputs)])
    y = layers.Conv2D(3 * width + 4, 2, strides=2)(x)
    x = layers.Concatenate(axis=1)([layers.AveragePooling2D(2)(x), y])
    x = layers.Flatten()(layers.MaxPooling2D((4, 2))(x))
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


def with_operators(width: int) -> keras.Model:
    """Python's operators and functions of keras.ops."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(width, 3)(inputs) * 2.0 + 1.0
    x = ops.relu(x) - ops.sigmoid(layers.Conv2D(width, 3)(inputs)) / 3.0
    x = x[:, 1:, ::2, :]
    x = ops.concatenate([x, -x], axis=-1)
    x = layers.Dense(width)(ops.mean(x, axis=(1, 2)))
    x = ops.squeeze(ops.expand_dims(ops.maximum(x, 0.1), 1), 1)
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


def with_merges(width: int) -> keras.Model:
    inputs = keras.Input((6,))
    x, y, z = (layers.Dense(width, activation="sigmoid")(inputs) for _ in range(3))
    x = layers.Maximum()([layers.Average()([x, y]), layers.Minimum()([y, z])])
    x = layers.Subtract()([x, layers.Multiply()([x, z])])
    one = layers.Dense(1)(inputs)  # for all units
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.Multiply()([x, one])))


def with_shared_layer(width: int) -> keras.Model:
    """A layer that is used twice: what it reads is the same units both times."""
    one, two = keras.Input((6,)), keras.Input((6,))
    first, second = layers.Dense(width, activation="relu"), layers.Dense(width, activation="relu")
    shared = layers.Dense(width + 1)
    x, y = shared(first(one)), shared(second(two))
    return keras.Model([one, two], layers.Dense(CLASSES)(layers.Concatenate()([x, y])))


def with_nested_models(width: int) -> keras.Model:
    """One inside of another, used twice, next to a Sequential."""
    tower = chain(layers.Dense(width, activation="relu"), layers.Dense(width + 1), shape=(6,))
    inner = chain(tower, layers.BatchNormalization(), shape=(6,))
    one, two = keras.Input((6,)), keras.Input((6,))
    tail = keras.Sequential([layers.Dense(width), layers.ReLU(), layers.Dense(CLASSES)])
    x = tail(layers.Add()([inner(one), inner(two)]))
    return keras.Model([one, two], [x, layers.Dense(2)(inner(one))])


def with_padded_shortcut(width: int) -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(width, 3, padding="same", activation="relu")(inputs)
    y = layers.Conv2D(2 * width, 3, strides=2, padding="same")(x)
    x = layers.ReLU()(layers.Add()([PaddedShortcut(2 * width, 2)(x), y]))
    return keras.Model(inputs, head(x))


WIDER: dict[str, tuple[Builder, Callable[[], Any]]] = {
    "Dense, dropout, batch norm": (with_dense, vectors),
    "EinsumDense": (with_einsum_dense, sequences),
    "Conv1D": (with_conv1d, sequences),
    "Conv3D": (with_conv3d, lambda: vectors(3, 128).reshape(3, 4, 4, 4, 2)),
    "depthwise and separable": (with_depthwise, lambda: images(pixels=8)),
    "depthwise by groups": (with_depthwise_by_groups, lambda: images(pixels=8)),
    "transposed": (with_transposed, lambda: images(pixels=8)),
    "PReLU": (with_prelu, lambda: images(pixels=8)),
    "noise": (with_noise, lambda: images(pixels=8)),
    "Flatten": (with_flatten, lambda: images(pixels=8)),
    "Reshape": (with_reshape, lambda: images(pixels=8)),
    "LSTM": (recurrent(layers.LSTM), tokens),
    "LSTM backwards": (recurrent(layers.LSTM, go_backwards=True), tokens),
    "GRU": (recurrent(layers.GRU), tokens),
    "GRU, reset before": (recurrent(layers.GRU, reset_after=False), tokens),
    "SimpleRNN": (recurrent(layers.SimpleRNN, use_bias=False), tokens),
    "LSTM with state": (with_state, lambda: [sequences(), -sequences()]),
    "squeeze and excite": (with_squeeze_and_excite, lambda: images(pixels=8)),
    "Concatenate": (with_concatenation, lambda: images(pixels=8)),
    "operators": (with_operators, lambda: images(pixels=8)),
    "merges": (with_merges, vectors),
    "shared layer": (with_shared_layer, lambda: [vectors(), -vectors()]),
    "nested models": (with_nested_models, lambda: [vectors(), -vectors()]),
    "PaddedShortcut": (with_padded_shortcut, lambda: images(pixels=8)),
}


@functools.cache
def parent_of(name: str) -> keras.Model:
    """Of width 4; nobody changes it."""
    return randomize(WIDER[name][0](4), zlib.crc32(name.encode()))


@pytest.mark.parametrize("name", WIDER)
@pytest.mark.parametrize("width", [4, 7])
def test_a_wider_one_computes_the_same(name: str, width: int) -> None:
    build, data = WIDER[name]
    parent, child = parent_of(name), build(width)
    made = warm(child, parent, in_order)
    assert difference(child, parent, data()) < (SAME if width > 4 else 1e-12)
    assert {each.action for each in made.report} <= {"copied", "widened"}
    assert made.carried == 1


@pytest.mark.parametrize("name", WIDER)
def test_a_narrower_one_takes_all_from_its_parent(name: str) -> None:
    build, data = WIDER[name]
    child = build(3)
    made = warm(child, parent_of(name), in_order)
    assert {each.action for each in made.report} <= {"copied", "narrowed"}
    assert all(np.isfinite(value).all() for value in made.values.values())
    assert np.isfinite(difference(child, child, data()))


# Layers across units


@pytest.mark.parametrize(
    "across",
    [
        layers.Softmax,
        lambda: layers.Activation("softmax"),
        layers.UnitNormalization,
        lambda: layers.Lambda(lambda x: x, output_shape=(3, 3, 4)),
        lambda: layers.Permute((1, 3, 2)),
        lambda: layers.Flatten("channels_first"),
    ],
)
def test_units_that_are_mixed_are_fixed(across: Callable[[], Any]) -> None:
    """A layer that makes each unit of all of them is not the same for copies of units."""
    model = chain(layers.Conv2D(4, 1), across(), layers.Flatten(), layers.Dense(2), shape=(3, 3, 3))
    graph = graph_of(model)
    kernel = graph.nodes[1].weights[0]
    (segment,) = kernel.axes[-1].segments
    assert graph.spaces[segment.space].kind == "fixed"
