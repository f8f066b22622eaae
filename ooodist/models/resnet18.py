"""The shallow residual networks for ImageNet, of basic blocks; Keras has the deeper ones alone.

Source: He et al. 2015, "Deep Residual Learning for Image Recognition", table 1 (shortcuts of
option B: a 1x1 convolution where the size changes).
"""

from dataclasses import dataclass
from typing import ClassVar

import keras

from ooodist.models.base import DataDescription, ImageModelConfig, dense_head, finish
from ooodist.models.interface import image_input, num_outputs
from ooodist.util.yaml_dataclass import Count

EPSILON = 1.001e-5  # as keras.applications.ResNet50
MIN_IMAGE_SIZE = 32  # pixels per side: they are halved five times


@dataclass(frozen=True, kw_only=True)
class ResNet18Config(ImageModelConfig):
    """Settings of ResNet-18.

    ``width``: channels of the first stage, doubled in each of the three others.
    """

    name: ClassVar[str] = "resnet18"
    blocks: ClassVar[tuple[int, ...]] = (2, 2, 2, 2)
    """Blocks of each stage, of two convolutions each."""

    width: Count = 64


@dataclass(frozen=True, kw_only=True)
class ResNet34Config(ResNet18Config):
    """Settings of ResNet-34."""

    name: ClassVar[str] = "resnet34"
    blocks: ClassVar[tuple[int, ...]] = (3, 4, 6, 3)


def build_resnet18(config: ResNet18Config, data: DataDescription) -> keras.Model:
    """Builds the model: images (batch, height, width, channels) to logits (batch, outputs)."""
    inputs = image_input(config.name, data, MIN_IMAGE_SIZE)
    outputs = num_outputs(config.name, data, ("classification", "regression"))
    x = _convolution(inputs, config.width, 7, 2, "stem")
    x = keras.layers.ReLU(name="stem_relu")(x)
    x = keras.layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")(x)
    for stage, blocks in enumerate(config.blocks):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _basic_block(x, config.width * 2**stage, stride, f"stage_{stage}_block_{block}")
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return finish(inputs, dense_head(x, outputs, config), config.name)


def _basic_block(x: keras.KerasTensor, filters: int, stride: int, name: str) -> keras.KerasTensor:
    """Adds two 3x3 convolutions to their input, which is projected if its size changes."""
    branch = _convolution(x, filters, 3, stride, f"{name}_1")
    branch = keras.layers.ReLU(name=f"{name}_1_relu")(branch)
    branch = _convolution(branch, filters, 3, 1, f"{name}_2")
    if stride != 1:
        x = _convolution(x, filters, 1, stride, f"{name}_shortcut")
    x = keras.layers.Add(name=f"{name}_add")([x, branch])
    return keras.layers.ReLU(name=f"{name}_relu")(x)


def _convolution(
    x: keras.KerasTensor, filters: int, size: int, stride: int, name: str
) -> keras.KerasTensor:
    """Applies a convolution of ``size`` x ``size`` pixels and batch normalization."""
    x = keras.layers.Conv2D(
        filters,
        size,
        strides=stride,
        padding="same",
        use_bias=False,  # the normalization has its own offset
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    return keras.layers.BatchNormalization(epsilon=EPSILON, name=f"{name}_norm")(x)
