"""Provides models by name: a settings dataclass and a builder each.

    config = MODELS["resnet20"].config(width=32)
    model = build(config, data)

``data`` gives the shape of a sample, the task and the number of classes
(:class:`DataDescription`). Models are built under the global Keras dtype policy; their last
layer gives float32 logits, and they are not compiled.
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NamedTuple

import keras

from ooodist.errors import UserError
from ooodist.models.applications import (
    DenseNet121Config,
    MobileNetV2Config,
    MobileNetV3LargeConfig,
    ResNet50Config,
    ResNet101Config,
    ResNet152Config,
    VGG16Config,
    build_application,
)
from ooodist.models.base import DataDescription, ModelConfig
from ooodist.models.densenet import DenseNetConfig, build_densenet
from ooodist.models.freezing import freeze
from ooodist.models.function import FunctionConfig, build_from_function
from ooodist.models.lstm import LstmConfig, build_lstm
from ooodist.models.mlp import MlpConfig, build_mlp
from ooodist.models.resnet18 import ResNet18Config, ResNet34Config, build_resnet18
from ooodist.models.resnet20 import ResNet20Config, build_resnet20
from ooodist.models.transformers.bert import (
    Bert12Config,
    Bert24Config,
    Bert36Config,
    Bert48Config,
    build_bert,
)
from ooodist.models.transformers.gpt import Gpt3MediumConfig, GptConfig, build_gpt
from ooodist.models.transformers.vit import VitConfig, build_vit
from ooodist.models.weights import load_start_weights

__all__ = [
    "MODELS",
    "DataDescription",
    "FunctionConfig",
    "ModelConfig",
    "build",
    "config_class",
    "load_start_weights",
]


class Registered(NamedTuple):
    """A model that can be named in YAML."""

    config: type[ModelConfig]
    build: Callable[[Any, DataDescription], keras.Model]


_ALL = (
    Registered(MlpConfig, build_mlp),
    Registered(ResNet20Config, build_resnet20),
    Registered(ResNet18Config, build_resnet18),
    Registered(ResNet34Config, build_resnet18),
    Registered(ResNet50Config, build_application),
    Registered(ResNet101Config, build_application),
    Registered(ResNet152Config, build_application),
    Registered(VGG16Config, build_application),
    Registered(DenseNet121Config, build_application),
    Registered(DenseNetConfig, build_densenet),
    Registered(MobileNetV2Config, build_application),
    Registered(MobileNetV3LargeConfig, build_application),
    Registered(VitConfig, build_vit),
    Registered(Bert12Config, build_bert),
    Registered(Bert24Config, build_bert),
    Registered(Bert36Config, build_bert),
    Registered(Bert48Config, build_bert),
    Registered(GptConfig, build_gpt),
    Registered(Gpt3MediumConfig, build_gpt),
    Registered(LstmConfig, build_lstm),
)

MODELS: dict[str, Registered] = {entry.config.name: entry for entry in _ALL}

_BUILDERS = {entry.config: entry.build for entry in _ALL} | {FunctionConfig: build_from_function}


def config_class(name: str) -> type[ModelConfig]:
    """The settings dataclass for ``model: {name: ...}``.

    A name with a colon is a user's function: FunctionConfig, whose field ``function`` is that
    name. Raises UserError if there is no model of this name.
    """
    if ":" in name:
        return FunctionConfig
    if name not in MODELS:
        close = get_close_matches(name, MODELS, n=1)
        raise UserError(
            f"model.name is {name!r}{f' (did you mean {close[0]}?)' if close else ''}; it must be "
            f"one of {', '.join(MODELS)}, or your own package.module:function."
        )
    return MODELS[name].config


def build(config: ModelConfig, data: DataDescription) -> keras.Model:
    """Builds the uncompiled model of these settings for this data, with its initial weights.

    Raises UserError if model and data do not fit together, or if initial weights cannot be
    loaded.
    """
    model = _BUILDERS[type(config)](config, data)
    if config.weights_file is not None:
        load_start_weights(model, config.weights_file, config.other_heads)
    freeze(model, config.freeze)
    return model
