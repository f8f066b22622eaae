"""DenseNets of any growth rate; Keras has those of 32 alone.

Source: Huang, Liu, van der Maaten, Weinberger 2016, "Densely Connected Convolutional Networks",
table 1 (with bottlenecks and compression: DenseNet-BC).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import keras

from ooodist.models.base import DataDescription, ImageModelConfig, dense_head, finish
from ooodist.models.interface import image_input, num_outputs
from ooodist.util.yaml_dataclass import Count

BLOCKS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}
"""Layers of each dense block, by depth."""

COMPRESSION = 0.5  # of a block's channels, what a transition keeps
EPSILON = 1.001e-5  # as keras.applications.DenseNet121
MIN_IMAGE_SIZE = 32  # pixels per side: they are halved five times


@dataclass(frozen=True, kw_only=True)
class DenseNetConfig(ImageModelConfig):
    """Settings of a DenseNet.

    ``depth``: 121, 169 or 201; ``growth_rate``: channels that each layer adds. With 32, it has the
    sizes of keras.applications' model of that depth.
    """

    name: ClassVar[str] = "densenet"

    depth: Literal[121, 169, 201] = 121
    growth_rate: Count = 12


def build_densenet(config: DenseNetConfig, data: DataDescription) -> keras.Model:
    """Builds the model: images (batch, height, width, channels) to logits (batch, outputs)."""
    inputs = image_input(config.name, data, MIN_IMAGE_SIZE)
    outputs = num_outputs(config.name, data, ("classification", "regression"))
    channels = 2 * config.growth_rate
    x = keras.layers.Conv2D(
        channels, 7, strides=2, padding="same", use_bias=False, name="stem_conv"
    )(inputs)
    x = _norm_relu(x, "stem")
    x = keras.layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")(x)
    for block, layers in enumerate(BLOCKS[config.depth], start=1):
        for layer in range(1, layers + 1):
            x = _layer(x, config.growth_rate, f"block_{block}_{layer}")
        channels += layers * config.growth_rate
        if block < len(BLOCKS[config.depth]):
            channels = int(channels * COMPRESSION)
            x = _norm_relu(x, f"transition_{block}")
            x = keras.layers.Conv2D(channels, 1, use_bias=False, name=f"transition_{block}_conv")(x)
            x = keras.layers.AveragePooling2D(2, name=f"transition_{block}_pool")(x)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(_norm_relu(x, "head"))
    return finish(inputs, dense_head(x, outputs, config), config.name)


def _layer(x: keras.KerasTensor, growth_rate: int, name: str) -> keras.KerasTensor:
    """Adds ``growth_rate`` channels to those of ``x``: a 1x1 convolution, then one of 3x3."""
    branch = _norm_relu(x, f"{name}_1")
    branch = keras.layers.Conv2D(4 * growth_rate, 1, use_bias=False, name=f"{name}_1_conv")(branch)
    branch = _norm_relu(branch, f"{name}_2")
    branch = keras.layers.Conv2D(
        growth_rate, 3, padding="same", use_bias=False, name=f"{name}_2_conv"
    )(branch)
    return keras.layers.Concatenate(name=f"{name}_concat")([x, branch])


def _norm_relu(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    x = keras.layers.BatchNormalization(epsilon=EPSILON, name=f"{name}_norm")(x)
    return keras.layers.ReLU(name=f"{name}_relu")(x)
