"""Small models that together have every kind of layer and graph that must split into units.

Each is a function of no arguments that returns ``(model, inputs, labels)``; inputs and labels are
what ``model`` takes and what its loss compares with. ``OUTPUTS`` says how many outputs there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.graph.recurrent import put_recurrent_gradients_after_loop

layers = keras.layers
Sample = tuple[keras.Model, Any, Any]
CLASSES = 5
BATCH = 4


def _labels() -> tf.Tensor:
    return tf.constant(np.arange(BATCH) % CLASSES, tf.int32)


def _numbers(*shape: int) -> tf.Tensor:
    values = np.random.default_rng(7).normal(size=(BATCH, *shape))
    return tf.constant(values.astype(np.float32))


def _tokens(length: int = 6, vocabulary: int = 11) -> tf.Tensor:
    return tf.constant(np.random.default_rng(7).integers(0, vocabulary, (BATCH, length)), tf.int32)


def dense_with_dropout() -> Sample:
    model = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(16, activation="relu"),
            layers.Dropout(0.3, seed=5),
            layers.Dense(16, activation="gelu"),
            layers.Dense(CLASSES),
        ]
    )
    return model, _numbers(12), _labels()


def convolution_with_batch_norm() -> Sample:
    """Residual; a bias beside the kernel (oneDNN fuses the two); frozen and unused statistics."""
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(image)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    y = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    y = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(y))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, y])))
    return keras.Model(image, layers.Dense(CLASSES)(x)), _numbers(8, 8, 3), _labels()


def batch_norm_under_dropout() -> Sample:
    """Graph optimization rewrites the sums in this batch norm's gradient."""
    image = keras.Input((6, 6, 2))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(image)))
    x = layers.Dropout(0.25, seed=2)(layers.GlobalAveragePooling2D()(x))
    x = layers.Dense(8, activation="gelu")(x)
    return keras.Model(image, layers.Dense(CLASSES)(x)), _numbers(6, 6, 2), _labels()


def depthwise_and_transposed() -> Sample:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.DepthwiseConv2D(3),
            layers.SeparableConv2D(6, 3, activation="relu"),
            layers.Conv2DTranspose(4, 3),
            layers.GroupNormalization(2),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )
    return model, _numbers(8, 8, 3), _labels()


def concatenating() -> Sample:
    """As in DenseNet: each layer sees all before it."""
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same")(image)
    for _ in range(3):
        new = layers.Conv2D(4, 3, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
        x = layers.Concatenate()([x, new])
    output = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, output), _numbers(8, 8, 3), _labels()


def attention_with_embeddings() -> Sample:
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 16)(tokens)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(y, y, use_causal_mask=True)])
        y = layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(16)(y)])
    output = layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(tokens, output), _tokens(), _labels()


class _TiedLogits(layers.Layer):
    """Multiplies by the transposed weights of an embedding."""

    def __init__(self, embedding: layers.Embedding, **options: Any) -> None:
        super().__init__(**options)
        self.embedding = embedding

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


def tied_and_shared_weights() -> Sample:
    """The embedding is also the output layer; one dense layer is used three times."""
    tokens = keras.Input((6,), dtype="int32")
    embedding = layers.Embedding(CLASSES + 6, 16)
    shared = layers.Dense(16, activation="tanh")
    x = embedding(tokens)
    for _ in range(3):
        x = layers.Add()([x, shared(x)])
    x = _TiedLogits(embedding)(layers.GlobalAveragePooling1D()(layers.Dense(16)(x)))
    return keras.Model(tokens, x), _tokens(), _labels()


def several_inputs_and_outputs() -> Sample:
    first, second = keras.Input((12,)), keras.Input((8, 8, 3))
    x = layers.Dense(16, activation="relu")(first)
    y = layers.Flatten()(layers.Conv2D(4, 3, strides=2)(second))
    both = layers.Dense(16, activation="relu")(layers.Concatenate()([x, y]))
    outputs = [layers.Dense(CLASSES)(both), layers.Dense(CLASSES)(x)]
    model = keras.Model([first, second], outputs)
    return model, [_numbers(12), _numbers(8, 8, 3)], [_labels(), _labels()]


def recurrent() -> Sample:
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(11, 8),
            # On a GPU, cuDNN's have no loop.
            layers.LSTM(8, return_sequences=True, use_cudnn=False),
            layers.Bidirectional(layers.GRU(8, use_cudnn=False)),
            layers.Dense(CLASSES),
        ]
    )
    return model, _tokens(), _labels()


def recurrent_with_gradients_after_loop() -> Sample:
    model, inputs, labels = recurrent()
    return put_recurrent_gradients_after_loop(model), inputs, labels


def partly_frozen() -> Sample:
    model = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(16, activation="relu"),
            layers.Rescaling(0.5),
            layers.Dense(CLASSES),
        ]
    )
    model.layers[1].trainable = False
    model.layers[2].trainable = False
    return model, _numbers(12), _labels()


def regularized() -> Sample:
    """Gradients that do not come down from the loss alone."""
    decay = keras.regularizers.L2(1e-2)
    model = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(16, activation="relu", kernel_regularizer=decay),
            layers.Dense(CLASSES, kernel_regularizer=decay, activity_regularizer=decay),
        ]
    )
    return model, _numbers(12), _labels()


def mixed_bfloat16() -> Sample:
    return _under_policy("mixed_bfloat16", convolution_with_batch_norm)


def mixed_float16() -> Sample:
    return _under_policy("mixed_float16", attention_with_embeddings)


def _under_policy(policy: str, make: Callable[[], Sample]) -> Sample:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return make()
    finally:
        keras.config.set_dtype_policy(before)


MODELS: dict[str, Callable[[], Sample]] = {
    make.__name__: make
    for make in (
        dense_with_dropout,
        convolution_with_batch_norm,
        batch_norm_under_dropout,
        depthwise_and_transposed,
        concatenating,
        attention_with_embeddings,
        tied_and_shared_weights,
        several_inputs_and_outputs,
        recurrent,
        recurrent_with_gradients_after_loop,
        partly_frozen,
        regularized,
        mixed_bfloat16,
        mixed_float16,
    )
}


def loss_of(model: keras.Model, inputs: Any, labels: Any) -> tf.Tensor:
    """Mean cross entropy over all outputs, plus the model's own losses; float32, shape ()."""
    outputs = tf.nest.flatten(model(inputs, training=True))
    losses = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(label, tf.cast(output, tf.float32))
        for label, output in zip(tf.nest.flatten(labels), outputs, strict=True)
    ]
    own = [tf.cast(loss, tf.float32) for loss in model.losses]
    return tf.add_n([tf.reduce_mean(loss) for loss in losses] + own)
