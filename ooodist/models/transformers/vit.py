"""The vision transformer of Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words"."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import keras

from ooodist.errors import UserError
from ooodist.models.base import DataDescription, finish
from ooodist.models.interface import image_input, num_outputs
from ooodist.models.layers import ClassToken, PositionEmbedding
from ooodist.models.transformers.block import (
    BlockStyle,
    TransformerConfig,
    dropout,
    transformer_block,
)
from ooodist.util.yaml_dataclass import Count, Fraction


@dataclass(frozen=True, kw_only=True)
class VitConfig(TransformerConfig):
    """Settings of a vision transformer; the defaults are ViT-B/16.

    ``patch``: side of a patch in pixels, which divides the image's sides; ``pooling``: "token" (a
    class token is classified) or "mean" (the mean of all patches).
    """

    name: ClassVar[str] = "vit_b16"

    attention_dropout: Fraction = 0.0
    patch: Count = 16
    pooling: Literal["token", "mean"] = "token"


def build_vit(config: VitConfig, data: DataDescription) -> keras.Model:
    """Builds the model: images (batch, height, width, channels) to logits (batch, outputs)."""
    inputs = image_input(config.name, data)
    outputs = num_outputs(config.name, data, ("classification", "regression"))
    x = _patches(inputs, config)
    if config.pooling == "token":
        x = ClassToken(name="class_token")(x)
    x = PositionEmbedding(name="positions")(x)
    x = dropout(x, config.dropout, "embedding_dropout")
    style = BlockStyle(normalize_first=True, causal=False, epsilon=1e-6)
    for index in range(config.layers):
        x = transformer_block(x, config, style, f"block_{index}")
    x = keras.layers.LayerNormalization(epsilon=style.epsilon, name="norm")(x)
    if config.pooling == "token":
        x = x[:, 0]
    else:
        x = keras.layers.GlobalAveragePooling1D(name="pool")(x)
    return finish(inputs, keras.layers.Dense(outputs, name="predictions")(x), config.name)


def _patches(inputs: keras.KerasTensor, config: VitConfig) -> keras.KerasTensor:
    """A vector for each patch: (batch, patches, width)."""
    height, width = inputs.shape[1:3]
    if height % config.patch or width % config.patch:
        raise UserError(
            f"model.patch is {config.patch}, which does not divide the data's images of "
            f"{height}x{width} pixels; change model.patch, or set data.image_size to a multiple "
            f"of {config.patch}."
        )
    x = keras.layers.Conv2D(config.width, config.patch, strides=config.patch, name="patches")(
        inputs
    )
    return keras.layers.Reshape((-1, config.width), name="sequence")(x)
