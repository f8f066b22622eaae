"""The residual network for small images: 6n+2 layers, 20 with n = 3.

Source: He et al. 2015, "Deep Residual Learning for Image Recognition", section 4.2.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import keras

from ooodist.models.base import DataDescription, ImageModelConfig, dense_head, finish
from ooodist.models.interface import image_input, num_outputs
from ooodist.models.layers import PaddedShortcut
from ooodist.util.yaml_dataclass import Count

NUM_STAGES = 3


@dataclass(frozen=True, kw_only=True)
class ResNet20Config(ImageModelConfig):
    """Settings of a residual network for small images.

    ``blocks_per_stage``: n in the paper (3: ResNet-20, 9: ResNet-56); ``width``: channels of the
    first stage, doubled in each of the two others; ``normalization``: batch, layer or none.
    """

    name: ClassVar[str] = "resnet20"

    blocks_per_stage: Count = 3
    width: Count = 16
    normalization: Literal["batch", "layer", "none"] = "batch"


def build_resnet20(config: ResNet20Config, data: DataDescription) -> keras.Model:
    """Builds the model: images (batch, height, width, channels) to logits (batch, outputs)."""
    inputs = image_input(config.name, data)
    outputs = num_outputs(config.name, data, ("classification", "regression"))
    x = _convolution(inputs, config, config.width, 1, "stem")
    x = keras.layers.ReLU(name="stem_relu")(x)
    for stage in range(NUM_STAGES):
        for block in range(config.blocks_per_stage):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _residual_block(
                x, config, config.width * 2**stage, stride, f"stage_{stage}_block_{block}"
            )
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return finish(inputs, dense_head(x, outputs, config), config.name)


def _residual_block(
    x: keras.KerasTensor, config: ResNet20Config, filters: int, stride: int, name: str
) -> keras.KerasTensor:
    branch = _convolution(x, config, filters, stride, f"{name}_1")
    branch = keras.layers.ReLU(name=f"{name}_1_relu")(branch)
    branch = _convolution(branch, config, filters, 1, f"{name}_2")
    if stride != 1:
        x = PaddedShortcut(filters, stride, name=f"{name}_shortcut")(x)
    x = keras.layers.Add(name=f"{name}_add")([x, branch])
    return keras.layers.ReLU(name=f"{name}_relu")(x)


def _convolution(
    x: keras.KerasTensor, config: ResNet20Config, filters: int, stride: int, name: str
) -> keras.KerasTensor:
    """Applies a 3x3 convolution and its normalization."""
    x = keras.layers.Conv2D(
        filters,
        3,
        strides=stride,
        padding="same",
        # A normalization that follows has its own offset.
        use_bias=config.normalization == "none",
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    if config.normalization == "batch":
        # Runs on small images have few steps: with Keras's momentum of 0.99 the moving
        # averages would still be near their initial values when the model is evaluated.
        return keras.layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(x)
    if config.normalization == "layer":
        return keras.layers.LayerNormalization(name=f"{name}_norm")(x)
    return x
