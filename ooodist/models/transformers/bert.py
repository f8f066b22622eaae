"""The transformer encoder of Devlin et al. 2018, "BERT"."""

import logging
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

logger = logging.getLogger("ooodist")


@dataclass(frozen=True, kw_only=True)
class Bert12Config(TokenTransformerConfig):
    """Settings of a BERT encoder; the defaults are BERT-base.

    There is no padding mask and no segment embedding: every position of a sequence is used.
    """

    name: ClassVar[str] = "bert_12"


@dataclass(frozen=True, kw_only=True)
class Bert24Config(Bert12Config):
    """Settings of a BERT encoder; the defaults are BERT-large."""

    name: ClassVar[str] = "bert_24"

    layers: int = 24
    width: int = 1024
    heads: int = 16


def build_bert(config: Bert12Config, data: DataDescription) -> keras.Model:
    """Builds the model from tokens (batch, length) to logits.

    Logits are (batch, length, vocabulary) for the task "language", otherwise (batch, outputs),
    read from the first position.
    """
    inputs = token_input(config.name, data)
    tasks = ("language", "classification", "regression")
    outputs = num_outputs(config.name, data, tasks)
    vocabulary = vocabulary_size(config.name, data, config.vocabulary_size)
    style = BlockStyle(
        normalize_first=False,
        causal=False,
        epsilon=1e-12,
        stddev=INITIAL_STDDEV,
        last_stddev=INITIAL_STDDEV,
    )
    tokens = TokenEmbedding(
        vocabulary,
        config.width,
        reverse_bias=data.task == "language" and config.tie_embeddings,
        initializer=initializer(),
        name="tokens",
    )
    x = PositionEmbedding(INITIAL_STDDEV, name="positions")(tokens(inputs))
    x = keras.layers.LayerNormalization(epsilon=style.epsilon, name="embedding_norm")(x)
    x = dropout(x, config.dropout, "embedding_dropout")
    for index in range(config.layers):
        x = transformer_block(x, config, style, f"block_{index}")
    if data.task == "language":
        x = _language_head(x, config, style, tokens)
    else:
        x = _pooled_head(x, config, outputs)
    return finish(inputs, x, config.name)


def _language_head(
    x: keras.KerasTensor, config: Bert12Config, style: BlockStyle, tokens: TokenEmbedding
) -> keras.KerasTensor:
    logger.warning(
        "model %s sees both neighbors of every token: if the data's labels are the next tokens, "
        "its input contains the answers; use data whose tokens are masked, or model gpt.",
        config.name,
    )
    x = keras.layers.Dense(
        config.width, activation="gelu", kernel_initializer=initializer(), name="head_transform"
    )(x)
    x = keras.layers.LayerNormalization(epsilon=style.epsilon, name="head_norm")(x)
    if config.tie_embeddings:
        return tokens(x, reverse=True)
    return keras.layers.Dense(
        tokens.vocabulary_size, kernel_initializer=initializer(), name="predictions"
    )(x)


def _pooled_head(x: keras.KerasTensor, config: Bert12Config, outputs: int) -> keras.KerasTensor:
    x = keras.layers.Dense(
        config.width, activation="tanh", kernel_initializer=initializer(), name="pooler"
    )(x[:, 0])
    x = dropout(x, config.dropout, "pooler_dropout")
    return keras.layers.Dense(outputs, kernel_initializer=initializer(), name="predictions")(x)
