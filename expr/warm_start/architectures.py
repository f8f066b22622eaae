"""The architectures: those in the zoo, and those that are held out.

A name says all: ``resnet-8-2`` has 8 channels in its first stage and 2 blocks a stage.
"""

from __future__ import annotations

import keras
from keras import layers
from tasks import TASKS, Task

from ooodist import models
from ooodist.models.mlp import MlpConfig
from ooodist.models.resnet20 import ResNet20Config
from ooodist.models.transformers.gpt import GptConfig
from ooodist.models.transformers.vit import VitConfig

ZOO = (
    *(f"mlp-{width}-{depth}" for width in (32, 48, 64, 96, 128) for depth in (1, 2, 3)),
    *(f"resnet-{width}-{blocks}" for width in (4, 6, 8, 10, 12) for blocks in (1, 2, 3)),
    *(f"mobilenet-{width}-{blocks}" for width in (4, 6, 8, 12) for blocks in (1, 2, 3)),
    *(f"vit-{width}-{depth}" for width in (16, 24, 32, 48) for depth in (1, 2, 3)),
    *(f"gpt-{width}-{depth}" for width in (32, 48, 64, 96) for depth in (1, 2, 3)),
)
HELD_OUT = (
    *("mlp-80-2", "mlp-40-3", "mlp-112-2", "mlp-72-4"),
    *("resnet-5-2", "resnet-7-1", "resnet-9-2", "resnet-11-1", "resnet-8-4"),
    *("mobilenet-5-2", "mobilenet-10-1", "mobilenet-7-3", "mobilenet-8-4"),
    *("vit-20-2", "vit-40-1", "vit-32-4"),
    *("gpt-40-2", "gpt-80-1", "gpt-64-4", "gpt-56-2"),
)


def task_of(name: str) -> Task:
    """The task that an architecture is for."""
    return TASKS["text" if name.startswith("gpt") else "digits"]


def kept_epochs(name: str) -> int:
    """Of the training of a model for the zoo: a ViT learns slowly here, and would be refused."""
    return task_of(name).epochs * (3 if name.startswith("vit") else 1)


def build(name: str) -> keras.Model:
    """A new model with random weights, not compiled."""
    family, *sizes = name.split("-")
    width, depth = map(int, sizes)
    task = task_of(name)
    if family == "mlp":
        return models.build(MlpConfig(layers=(width,) * depth), task)
    if family == "resnet":
        return models.build(ResNet20Config(width=width, blocks_per_stage=depth), task)
    if family == "mobilenet":
        return mobilenet(task, width, depth)
    heads = width // 8
    if family == "vit":
        config = VitConfig(layers=depth, width=width, heads=heads, patch=4, dropout=0)
        return models.build(config, task)
    return models.build(GptConfig(layers=depth, width=width, heads=heads, dropout=0), task)


def mobilenet(task: Task, width: int, blocks: int) -> keras.Model:
    """Inverted residual blocks (Sandler et al. 2018) in two stages, for small images."""
    inputs = keras.Input(tuple(task.input_spec.shape), name="input")
    x = _normalized(layers.Conv2D(width, 3, padding="same", use_bias=False, name="stem")(inputs))
    for stage in range(2):
        for block in range(blocks):
            stride = 2 if block == 0 else 1
            x = _inverted_residual(x, width * 2**stage, stride, f"stage_{stage}_block_{block}")
    x = _normalized(layers.Conv2D(width * 8, 1, use_bias=False, name="last")(x))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(task.num_classes, name="predictions")(x))


def _inverted_residual(
    x: keras.KerasTensor, filters: int, stride: int, name: str
) -> keras.KerasTensor:
    expanded = 4 * x.shape[-1]
    y = layers.Conv2D(expanded, 1, use_bias=False, name=f"{name}_expand")(x)
    y = _normalized(y)
    y = layers.DepthwiseConv2D(
        3, strides=stride, padding="same", use_bias=False, name=f"{name}_depthwise"
    )(y)
    y = _normalized(y)
    y = layers.Conv2D(filters, 1, use_bias=False, name=f"{name}_project")(y)
    y = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(y)
    if stride == 1 and x.shape[-1] == filters:
        return layers.Add(name=f"{name}_add")([x, y])
    return y


def _normalized(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.ReLU(6.0)(layers.BatchNormalization(momentum=0.9)(x))
