"""The transformer encoder of Devlin et al. 2018, "BERT"."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import keras

from ooodist.models.base import PRETRAINING, DataDescription, finish, float32_logits
from ooodist.models.interface import num_outputs, token_input, vocabulary_size
from ooodist.models.layers import AtPositions, PositionEmbedding, TokenEmbedding
from ooodist.models.transformers.block import (
    INITIAL_STDDEV,
    BlockStyle,
    TokenTransformerConfig,
    dropout,
    initializer,
    transformer_block,
)
from ooodist.util.yaml_dataclass import Count

logger = logging.getLogger("ooodist")

TEXTS = ("token_ids", "segment_ids", "is_token")  # of data tsv
PRETRAINING_HEADS = ("head_transform", "head_norm", "predictions", "next_predictions")


@dataclass(frozen=True, kw_only=True)
class Bert12Config(TokenTransformerConfig):
    """Settings of a BERT encoder; the defaults are BERT-base.

    With data masked_text it is the model that was published, for pre-training: segments, a padding
    mask, a head for masked tokens and one for the next sentence; with data tsv, one head. Other
    data have neither segments nor padding: every position of a sequence is used.
    """

    name: ClassVar[str] = "bert_12"
    other_heads: ClassVar[tuple[str, ...]] = PRETRAINING_HEADS


@dataclass(frozen=True, kw_only=True)
class Bert24Config(Bert12Config):
    """Settings of a BERT encoder; the defaults are BERT-large."""

    name: ClassVar[str] = "bert_24"

    layers: Count = 24
    width: Count = 1024
    heads: Count = 16


@dataclass(frozen=True, kw_only=True)
class Bert36Config(Bert24Config):
    """Settings of a BERT encoder; the defaults are BERT-large with 36 layers."""

    name: ClassVar[str] = "bert_36"

    layers: Count = 36


@dataclass(frozen=True, kw_only=True)
class Bert48Config(Bert24Config):
    """Settings of a BERT encoder; the defaults are BERT-large with 48 layers."""

    name: ClassVar[str] = "bert_48"

    layers: Count = 48


STYLE = BlockStyle(
    normalize_first=False,
    causal=False,
    epsilon=1e-12,
    stddev=INITIAL_STDDEV,
    last_stddev=INITIAL_STDDEV,
)


def build_bert(config: Bert12Config, data: DataDescription) -> keras.Model:
    """Builds the model from tokens (batch, length) to logits.

    Logits are (batch, length, vocabulary) for the task "language", otherwise (batch, outputs),
    read from the first position. For "pretraining", see :func:`_build_for_pretraining`.
    """
    if data.task == PRETRAINING:
        return _build_for_pretraining(config, data)
    if isinstance(data.input_spec, dict) and set(data.input_spec) == set(TEXTS):
        inputs, x, _ = _encode_texts(config, data)
        outputs = num_outputs(config.name, data, ("classification", "regression"))
        return finish(inputs, _pooled_head(x, config, outputs), config.name)
    inputs = token_input(config.name, data)
    tasks = ("language", "classification", "regression")
    outputs = num_outputs(config.name, data, tasks)
    tokens = _token_embedding(config, data)
    x = _encode(tokens(inputs), config)
    if data.task == "language":
        logger.warning(
            "model %s sees both neighbors of every token: if the data's labels are the next "
            "tokens, its input contains the answers; use data masked_text, or model gpt.",
            config.name,
        )
        x = _language_head(x, config, tokens)
    else:
        x = _pooled_head(x, config, outputs)
    return finish(inputs, x, config.name)


def _build_for_pretraining(config: Bert12Config, data: DataDescription) -> keras.Model:
    """Builds the published model, from a dictionary of int32.

    Inputs: ``token_ids``, ``segment_ids`` (0 or 1) and ``is_token`` (0 for padding), each (batch,
    length), and ``chosen`` (batch, predictions), the places of tokens to predict. Outputs: logits
    ``masked`` (batch, predictions, vocabulary) and ``next`` (batch, 2), whose second column says
    that the second segment is from elsewhere.
    """
    inputs, x, tokens = _encode_texts(config, data)
    chosen = AtPositions(name="chosen_vectors")(x, inputs["chosen"])
    masked = _language_head(chosen, config, tokens)
    follows = _pooled_head(x, config, 2, "next_predictions")
    outputs = [float32_logits(masked, "masked"), float32_logits(follows, "next")]
    return keras.Model(inputs, outputs, name=config.name)


def _encode_texts(
    config: Bert12Config, data: DataDescription
) -> tuple[dict[str, keras.KerasTensor], keras.KerasTensor, TokenEmbedding]:
    """The inputs by name, the encoded tokens of one or two texts, and the embedding of tokens."""
    inputs = {
        name: keras.Input(tuple(spec.shape), dtype=spec.dtype.name, name=name)
        for name, spec in data.input_spec.items()
    }
    tokens = _token_embedding(config, data)
    segments = keras.layers.Embedding(
        2, config.width, embeddings_initializer=initializer(), name="segments"
    )
    x = keras.layers.Add(name="tokens_and_segments")(
        [tokens(inputs["token_ids"]), segments(inputs["segment_ids"])]
    )
    x = _encode(x, config, keras.ops.cast(inputs["is_token"], "bool")[:, None, :])
    return inputs, x, tokens


def _token_embedding(config: Bert12Config, data: DataDescription) -> TokenEmbedding:
    return TokenEmbedding(
        vocabulary_size(config.name, data, config.vocabulary_size),
        config.width,
        reverse_bias=data.task in ("language", PRETRAINING) and config.tie_embeddings,
        initializer=initializer(),
        name="tokens",
    )


def _encode(
    x: keras.KerasTensor, config: Bert12Config, mask: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Encodes embedded tokens (batch, length, width); see transformer_block for the mask."""
    x = PositionEmbedding(INITIAL_STDDEV, name="positions")(x)
    x = keras.layers.LayerNormalization(epsilon=STYLE.epsilon, name="embedding_norm")(x)
    x = dropout(x, config.dropout, "embedding_dropout")
    for index in range(config.layers):
        x = transformer_block(x, config, STYLE, f"block_{index}", mask)
    return x


def _language_head(
    x: keras.KerasTensor, config: Bert12Config, tokens: TokenEmbedding
) -> keras.KerasTensor:
    x = keras.layers.Dense(
        config.width, activation="gelu", kernel_initializer=initializer(), name="head_transform"
    )(x)
    x = keras.layers.LayerNormalization(epsilon=STYLE.epsilon, name="head_norm")(x)
    if config.tie_embeddings:
        return tokens(x, reverse=True)
    return keras.layers.Dense(
        tokens.vocabulary_size, kernel_initializer=initializer(), name="predictions"
    )(x)


def _pooled_head(
    x: keras.KerasTensor, config: Bert12Config, outputs: int, name: str = "predictions"
) -> keras.KerasTensor:
    x = keras.layers.Dense(
        config.width, activation="tanh", kernel_initializer=initializer(), name="pooler"
    )(x[:, 0])
    x = dropout(x, config.dropout, "pooler_dropout")
    return keras.layers.Dense(outputs, kernel_initializer=initializer(), name=name)(x)
