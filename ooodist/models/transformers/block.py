"""The transformer block that ViT, BERT and GPT share, made of stock Keras layers."""

from collections.abc import Callable
from dataclasses import dataclass

import keras

from ooodist.errors import UserError
from ooodist.models.base import ModelConfig
from ooodist.util.yaml_dataclass import Count, Fraction

INITIAL_STDDEV = 0.02
"""Standard deviation of the initial weights of BERT and GPT-2."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """Settings of a transformer.

    ``layers`` blocks of ``width`` numbers per position, ``heads`` attention heads (which divide
    the width), ``mlp_width`` hidden units (None: 4 x width); ``dropout`` after the embedding and
    each branch, ``attention_dropout`` on the attention weights.
    """

    layers: Count = 12
    width: Count = 768
    heads: Count = 12
    mlp_width: Count | None = None
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise UserError(
                f"model.width is {self.width} and model.heads is {self.heads}; the heads must "
                "divide the width: change one of them."
            )


@dataclass(frozen=True, kw_only=True)
class TokenTransformerConfig(TransformerConfig):
    """Settings of a transformer for tokens.

    ``vocabulary_size``: None takes the data's (language only); ``tie_embeddings``: the language
    head scores tokens with the embedding's own table.
    """

    vocabulary_size: Count | None = None
    tie_embeddings: bool = True


@dataclass(frozen=True, kw_only=True)
class BlockStyle:
    """The differences between the blocks of the three models."""

    normalize_first: bool
    """Normalize a branch's input (GPT, ViT) instead of its sum with the input (BERT)."""
    causal: bool
    """Whether a position attends only to itself and those before it."""
    epsilon: float
    """The epsilon of layer normalization."""
    stddev: float | None = None
    """Standard deviation of the initial weights; None: Glorot's uniform distribution."""
    last_stddev: float | None = None
    """The same for the MLP's second layer, whose output is added to the input."""


def transformer_block(
    x: keras.KerasTensor,
    config: TransformerConfig,
    style: BlockStyle,
    name: str,
    mask: keras.KerasTensor | None = None,
) -> keras.KerasTensor:
    """Applies attention and an MLP, each added to its input (batch, length, width).

    Args:
        mask: bool (batch, 1, length), false for positions that no other one looks at; None: all
            are looked at.
    """
    x = _residual(x, _attention(config, style, f"{name}_attention", mask), config, style)
    return _residual(x, _mlp(config, style, f"{name}_mlp"), config, style)


def dropout(x: keras.KerasTensor, rate: float, name: str) -> keras.KerasTensor:
    """Applies a dropout layer to ``x``, unless the rate is 0."""
    return keras.layers.Dropout(rate, name=name)(x) if rate else x


def initializer(stddev: float | None = INITIAL_STDDEV) -> keras.initializers.Initializer:
    """Makes an initializer for one layer's weights; None: Glorot's uniform distribution.

    Each layer needs its own: an unseeded Keras initializer gives the same values each time.
    """
    if stddev is None:
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=stddev)


@dataclass(frozen=True)
class _Branch:
    name: str
    apply: Callable[[keras.KerasTensor], keras.KerasTensor]


def _residual(
    x: keras.KerasTensor, branch: _Branch, config: TransformerConfig, style: BlockStyle
) -> keras.KerasTensor:
    normalize = keras.layers.LayerNormalization(epsilon=style.epsilon, name=f"{branch.name}_norm")
    y = branch.apply(normalize(x) if style.normalize_first else x)
    y = dropout(y, config.dropout, f"{branch.name}_dropout")
    x = keras.layers.Add(name=f"{branch.name}_add")([x, y])
    return x if style.normalize_first else normalize(x)


def _attention(
    config: TransformerConfig, style: BlockStyle, name: str, mask: keras.KerasTensor | None
) -> _Branch:
    attention = keras.layers.MultiHeadAttention(
        config.heads,
        config.width // config.heads,
        dropout=config.attention_dropout,
        kernel_initializer=initializer(style.stddev),
        name=name,
    )
    return _Branch(
        name, lambda x: attention(x, x, attention_mask=mask, use_causal_mask=style.causal)
    )


def _mlp(config: TransformerConfig, style: BlockStyle, name: str) -> _Branch:
    expand = keras.layers.Dense(
        config.mlp_width or 4 * config.width,
        activation="gelu",
        kernel_initializer=initializer(style.stddev),
        name=f"{name}_expand",
    )
    contract = keras.layers.Dense(
        config.width,
        kernel_initializer=initializer(style.last_stddev),
        name=f"{name}_contract",
    )
    return _Branch(name, lambda x: contract(expand(x)))
