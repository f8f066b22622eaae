"""The transformer decoder of Radford et al. 2019 (GPT-2)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import keras

from ooodist.models.base import DataDescription, finish
from ooodist.models.interface import num_outputs, token_input, vocabulary_size
from ooodist.models.layers import PositionEmbedding, TokenEmbedding
from ooodist.models.transformers.block import (
    INITIAL_STDDEV,
    BlockStyle,
    TokenTransformerConfig,
    dropout,
    initializer,
    transformer_block,
)
from ooodist.util.yaml_dataclass import Count


@dataclass(frozen=True, kw_only=True)
class GptConfig(TokenTransformerConfig):
    """Settings of a GPT decoder; the defaults are GPT-2 small."""

    name: ClassVar[str] = "gpt"


@dataclass(frozen=True, kw_only=True)
class Gpt3MediumConfig(GptConfig):
    """Settings of a GPT decoder; the defaults are GPT-3 Medium (Brown et al. 2020, table 2.1).

    Every layer attends to all positions before; in the paper every other one is sparse.
    """

    name: ClassVar[str] = "gpt3_medium"

    layers: Count = 24
    width: Count = 1024
    heads: Count = 16


def build_gpt(config: GptConfig, data: DataDescription) -> keras.Model:
    """Builds the model: tokens (batch, length) to next-token logits (batch, length, vocabulary)."""
    inputs = token_input(config.name, data)
    num_outputs(config.name, data, ("language",))
    vocabulary = vocabulary_size(config.name, data, config.vocabulary_size)
    style = BlockStyle(
        normalize_first=True,
        causal=True,
        epsilon=1e-5,
        stddev=INITIAL_STDDEV,
        # Each block adds two branches to its input: smaller initial weights where they are added
        # keep the variance of the sum independent of the depth.
        last_stddev=INITIAL_STDDEV / math.sqrt(2 * config.layers),
    )
    tokens = TokenEmbedding(vocabulary, config.width, initializer=initializer(), name="tokens")
    x = PositionEmbedding(INITIAL_STDDEV, name="positions")(tokens(inputs))
    x = dropout(x, config.dropout, "embedding_dropout")
    for index in range(config.layers):
        x = transformer_block(x, config, style, f"block_{index}")
    x = keras.layers.LayerNormalization(epsilon=style.epsilon, name="norm")(x)
    if config.tie_embeddings:
        x = tokens(x, reverse=True)
    else:
        x = keras.layers.Dense(
            vocabulary, use_bias=False, kernel_initializer=initializer(), name="predictions"
        )(x)
    return finish(inputs, x, config.name)
