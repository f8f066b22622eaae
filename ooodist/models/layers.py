"""Layers that Keras does not have, registered so that saved models can be loaded as usual."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="ooodist")
class TokenEmbedding(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """A table of token vectors that can also be used in reverse, to score every token.

    ``layer(tokens)`` maps integers (batch, length) to vectors (batch, length, width).
    ``layer(vectors, reverse=True)`` maps vectors (..., width) to logits (..., vocabulary_size) with
    the same table ("tied" weights: one variable), plus a bias if ``reverse_bias`` is set.
    """

    def __init__(
        self,
        vocabulary_size: int,
        width: int,
        reverse_bias: bool = False,
        initializer: Any = "uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.width = width
        self.reverse_bias = reverse_bias
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        # Without autocast: looking up rows in a cast table would make the gradient of the whole
        # table dense, and would cast all rows to use a few.
        self.table = self.add_weight(
            shape=(self.vocabulary_size, self.width),
            initializer=self.initializer,
            autocast=False,
            name="table",
        )
        if self.reverse_bias:
            self.bias = self.add_weight(
                shape=(self.vocabulary_size,), initializer="zeros", name="reverse_bias"
            )

    def call(self, inputs: keras.KerasTensor, reverse: bool = False) -> keras.KerasTensor:
        if not reverse:
            tokens = ops.cast(inputs, "int32")
            return ops.cast(ops.take(self.table, tokens, axis=0), self.compute_dtype)
        table = ops.cast(self.table, self.compute_dtype)
        logits = ops.matmul(inputs, ops.transpose(table))
        return ops.add(logits, self.bias) if self.reverse_bias else logits

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "width": self.width,
            "reverse_bias": self.reverse_bias,
            "initializer": keras.initializers.serialize(self.initializer),
        }


@keras.saving.register_keras_serializable(package="ooodist")
class PositionEmbedding(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """Adds a learned vector to each position of a sequence (batch, length, width)."""

    def __init__(self, stddev: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stddev = stddev

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.positions = self.add_weight(
            shape=input_shape[1:],
            initializer=keras.initializers.RandomNormal(stddev=self.stddev),
            name="positions",
        )

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        return ops.add(inputs, self.positions)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "stddev": self.stddev}


@keras.saving.register_keras_serializable(package="ooodist")
class AtPositions(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """Takes the vectors at some positions of a sequence.

    (batch, length, width) and integers (batch, count) become (batch, count, width).
    """

    def call(self, inputs: keras.KerasTensor, positions: keras.KerasTensor) -> keras.KerasTensor:
        return ops.take_along_axis(inputs, ops.expand_dims(positions, -1), axis=1)


@keras.saving.register_keras_serializable(package="ooodist")
class ClassToken(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """Prepends one learned vector to a sequence.

    (batch, length, width) becomes (batch, 1 + length, width).
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.token = self.add_weight(
            shape=(1, 1, input_shape[-1]), initializer="zeros", name="token"
        )

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        shape = (ops.shape(inputs)[0], 1, inputs.shape[-1])
        token = ops.cast(ops.broadcast_to(self.token, shape), inputs.dtype)
        return ops.concatenate([token, inputs], axis=1)


@keras.saving.register_keras_serializable(package="ooodist")
class PaddedShortcut(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """A parameter-free shortcut between residual blocks of different size.

    It takes every ``stride``-th pixel and fills new channels with zeros (He et al. 2015, option A):
    (batch, height, width, channels) becomes (batch, ceil(height / stride), ceil(width / stride),
    ``filters``).
    """

    def __init__(self, filters: int, stride: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = filters
        self.stride = stride

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        new_channels = self.filters - inputs.shape[-1]
        pixels = inputs[:, :: self.stride, :: self.stride, :]
        return ops.pad(pixels, [(0, 0), (0, 0), (0, 0), (0, new_channels)])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "filters": self.filters, "stride": self.stride}
