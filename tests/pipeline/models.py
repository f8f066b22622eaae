"""Models whose stages exchange more than one tensor, and those of the backward pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tests.graph import models
from tests.graph.models import BATCH, CLASSES, Sample

layers = keras.layers


def parts_at(cuts: Sequence[int], num_calls: int) -> list[range]:
    """The parts of so many calls, with a new one at each of the cuts."""
    return list(itertools.starmap(range, itertools.pairwise((0, *cuts, num_calls))))


def unet() -> Sample:
    """Two skips from the way down to the way up."""
    image = keras.Input((8, 8, 3))
    skips, x = [], image
    for width in (4, 8):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    for width, skip in zip((8, 4), reversed(skips), strict=True):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    output = layers.Conv2D(CLASSES, 1)(x)
    return keras.Model(image, output), _numbers(8, 8, 3), _classes(8, 8)


def residual() -> Sample:
    """A small ResNet: batch norm, and sums around two convolutions each."""
    x = image = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for width, strides in ((8, 1), (16, 2), (16, 1)):
        y = layers.Conv2D(width, 3, strides, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.Conv2D(width, 3, padding="same", use_bias=False)(y)
        y = layers.BatchNormalization()(y)
        if strides > 1:
            x = layers.Conv2D(width, 1, strides, use_bias=False)(x)
        x = layers.ReLU()(layers.Add()([x, y]))
    output = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, output), _numbers(8, 8, 3), _classes()


def encoder_decoder() -> Sample:
    """The encoder's output is needed by every layer of the decoder."""
    source, target = keras.Input((6,), dtype="int32"), keras.Input((5,), dtype="int32")
    x = layers.Embedding(11, 8)(source)
    for _ in range(2):
        x = layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)])
    memory = layers.LayerNormalization()(x)
    y = layers.Embedding(7, 8)(target)
    for _ in range(2):
        y = layers.Add()([y, layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)])
        y = layers.Add()([y, layers.MultiHeadAttention(2, 4)(y, memory)])
        y = layers.Add()([y, layers.Dense(8, activation="gelu")(y)])
    inputs = [_tokens(6, 11), _tokens(5, 7)]
    return keras.Model([source, target], layers.Dense(CLASSES)(y)), inputs, _classes(5)


def with_operations() -> Sample:
    """Calls that are no layers; a tensor that is used by its parts."""
    image = keras.Input((6, 4))
    x = layers.Dense(8)(image)
    first, rest = x[:, 0], keras.ops.mean(x[:, 1:], axis=1)
    x = keras.ops.tanh(first) * rest + first
    return keras.Model(image, layers.Dense(CLASSES)(x)), _numbers(6, 4), _classes()


def masked() -> Sample:
    """What is padding is no layer's output: a mask goes from the embedding to the others."""
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8, mask_zero=True)(tokens)
    x = layers.Dense(8)(layers.LSTM(8, return_sequences=True)(x))
    x = layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)])
    return keras.Model(tokens, layers.Dense(CLASSES)(layers.GRU(8)(x))), _tokens(6, 3), _classes()


def masked_to_the_end() -> Sample:
    """Attention, and at the end the loss, take the mask that Keras has attached to a tensor."""
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8, mask_zero=True)(tokens)
    for _ in range(2):
        x = layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)])
        x = layers.LayerNormalization()(x)
    return keras.Model(tokens, layers.Dense(CLASSES)(x)), _tokens(6, 3), _classes(6)


def inputs_by_name() -> Sample:
    user, item = keras.Input((6,), name="user"), keras.Input((4,), name="item")
    x = layers.Dense(16, activation="relu")(user)
    y = layers.Dense(16, activation="relu")(item)
    output = layers.Dense(CLASSES)(layers.Concatenate()([x, y]))
    model = keras.Model({"user": user, "item": item}, output)
    return model, {"user": _numbers(6), "item": _numbers(4)}, _classes()


def one_layer_again_and_again() -> Sample:
    shared = layers.Dense(8, activation="tanh")
    x = image = keras.Input((8,))
    for _ in range(4):
        x = shared(x)
    return keras.Model(image, layers.Dense(CLASSES)(x)), _numbers(8), _classes()


@keras.saving.register_keras_serializable("tests")
def _without_batch_size(x: tf.Tensor) -> tf.Tensor:
    """All of them, but TensorFlow cannot know."""
    return tf.boolean_mask(x, tf.reduce_all(x > -1e9, axis=1))


def lost_batch_size() -> Sample:
    """After a Lambda, nothing tells how many samples there are, wherever it is split."""
    image = keras.Input((8,))
    x = layers.Dense(8, activation="relu")(image)
    x = layers.Lambda(_without_batch_size, output_shape=(8,))(x)
    x = layers.Dense(8, activation="relu", name="behind")(x)
    return keras.Model(image, layers.Dense(CLASSES)(x)), _numbers(8), _classes()


def twins() -> Sample:
    """Two models made by one function, so that their weights have the same paths: the first is used
    twice."""

    def block(name: str) -> keras.Model:
        x = layers.Dense(8, activation="relu", name="one")(numbers := keras.Input((8,)))
        return keras.Model(numbers, layers.Dense(8, name="other")(x), name=name)

    left, right = keras.Input((8,)), keras.Input((8,))
    encoder, decoder = block("encoder"), block("decoder")
    x = layers.ReLU()(layers.Subtract()([encoder(left), encoder(right)]))
    output = layers.Dense(CLASSES)(decoder(x))
    return keras.Model([left, right], output), [_numbers(8), 0.5 * _numbers(8)], _classes()


MODELS = models.MODELS | {
    make.__name__: make
    for make in (
        unet,
        residual,
        encoder_decoder,
        with_operations,
        masked,
        masked_to_the_end,
        inputs_by_name,
        one_layer_again_and_again,
        lost_batch_size,
        twins,
    )
}


def _numbers(*shape: int) -> tf.Tensor:
    values = np.random.default_rng(3).normal(size=(BATCH, *shape))
    return tf.constant(values.astype(np.float32))


def _tokens(length: int, vocabulary: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(3).integers(0, vocabulary, (BATCH, length)), tf.int32)


def _classes(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(4).integers(0, CLASSES, (BATCH, *shape)), tf.int32)
