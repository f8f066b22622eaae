"""A model with an embedding whose rows are used again and again, and the same with dense gradients.

Keras gives the optimizer the gradient of an Embedding as slices, one for each use of a row. The
dense twin computes the same by a product with one-hot vectors, so that its gradient is summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

layers = keras.layers
ROWS = 7

# What is not linear in the gradient squares the uses of a row for themselves, or their sum.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(1e-2, epsilon=1e-3),
    "nadam": lambda: keras.optimizers.Nadam(1e-2, epsilon=1e-3),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-2, epsilon=1e-3),
    "adagrad": lambda: keras.optimizers.Adagrad(1e-1),
    "clipnorm": lambda: keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.01),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.01),
}


class DenseEmbedding(layers.Embedding):
    """An Embedding whose gradient is dense."""

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(keras.ops.one_hot(x, self.input_dim), self.embeddings)


def language_model(optimizer: Any, kind: type = layers.Embedding, seed: int = 1) -> keras.Model:
    """Compiled; tells the first token of a sequence of five."""
    keras.utils.set_random_seed(seed)
    tokens = keras.Input((5,), dtype="int32")
    x = kind(ROWS, 4, name="embedding")(tokens)
    model = keras.Model(tokens, layers.Dense(ROWS)(layers.Flatten()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


def sequences(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (count, 5), and what is to be told of them (count,)."""
    tokens = np.random.default_rng(5).integers(0, ROWS, (count, 5)).astype(np.int32)
    return tokens, tokens[:, 0]
