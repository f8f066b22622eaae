"""Small models of every family with data that fits them, and random batches of such data."""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from ooodist.models import DataDescription, ModelConfig
from ooodist.models.applications import MobileNetV2Config, MobileNetV3LargeConfig
from ooodist.models.densenet import DenseNetConfig
from ooodist.models.lstm import LstmConfig
from ooodist.models.mlp import MlpConfig
from ooodist.models.resnet18 import ResNet18Config
from ooodist.models.resnet20 import ResNet20Config
from ooodist.models.transformers.bert import Bert12Config
from ooodist.models.transformers.gpt import GptConfig
from ooodist.models.transformers.vit import VitConfig


@dataclass(frozen=True)
class Description:
    """The data as a model sees it (a DataDescription)."""

    input_spec: object
    task: str = "classification"
    num_classes: int | None = 5
    num_tokens: int | None = None


def images(size: int = 8, channels: int = 3, num_classes: int = 5) -> Description:
    return Description(tf.TensorSpec((size, size, channels), tf.float32), num_classes=num_classes)


def tokens(length: int = 6, task: str = "language", num_classes: int | None = 11) -> Description:
    return Description(tf.TensorSpec((length,), tf.int32), task, num_classes)


SMALL_BLOCKS = {"layers": 2, "width": 16, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
TOKEN_CLASSES = tokens(task="classification", num_classes=3)

SMALL: dict[str, tuple[ModelConfig, DataDescription]] = {
    "mlp": (MlpConfig(layers=(16, 8), dropout=0.1), images()),
    "mlp_regression": (
        MlpConfig(layers=(8,)),
        Description(tf.TensorSpec((4,), tf.float64), "regression", None),
    ),
    "resnet20_batch": (ResNet20Config(blocks_per_stage=2, width=4), images()),
    "resnet20_layer": (
        ResNet20Config(blocks_per_stage=1, width=4, normalization="layer"),
        images(channels=1),
    ),
    "resnet20_none": (
        ResNet20Config(blocks_per_stage=1, width=4, normalization="none"),
        images(),
    ),
    "resnet18": (ResNet18Config(width=4), images(32)),
    "mobilenet_v2": (MobileNetV2Config(alpha=0.1), images(32)),
    "mobilenet_v3_large": (MobileNetV3LargeConfig(alpha=0.1, dropout=0.0), images(32)),
    "densenet": (DenseNetConfig(growth_rate=2), images(32)),
    "vit_token": (VitConfig(**SMALL_BLOCKS, patch=4), images()),
    "vit_mean": (VitConfig(**SMALL_BLOCKS, patch=4, pooling="mean"), images()),
    "bert_language": (Bert12Config(**SMALL_BLOCKS), tokens()),
    "bert_untied": (Bert12Config(**SMALL_BLOCKS, tie_embeddings=False), tokens()),
    "bert_classes": (Bert12Config(**SMALL_BLOCKS, vocabulary_size=11), TOKEN_CLASSES),
    "gpt": (GptConfig(**SMALL_BLOCKS), tokens()),
    "gpt_untied": (GptConfig(**SMALL_BLOCKS, tie_embeddings=False), tokens()),
    "lstm_language": (LstmConfig(width=16), tokens()),
    "lstm_classes": (LstmConfig(layers=2, width=8, vocabulary_size=11), TOKEN_CLASSES),
}


def random_batch(data: Description, batch: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """x (batch, ...) and y (batch,) or, for language, (batch, length)."""
    random = np.random.default_rng(1)
    shape = (batch, *data.input_spec.shape)
    if data.input_spec.dtype.is_integer:
        x = random.integers(0, 11, shape).astype(data.input_spec.dtype.as_numpy_dtype)
    else:
        x = random.normal(size=shape).astype(data.input_spec.dtype.as_numpy_dtype)
    if data.task == "regression":
        return x, random.normal(size=(batch, 1)).astype("float32")
    return x, random.integers(0, data.num_classes, shape if data.task == "language" else (batch,))


def loss_of(data: DataDescription) -> keras.losses.Loss:
    if data.task == "regression":
        return keras.losses.MeanSquaredError()
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
