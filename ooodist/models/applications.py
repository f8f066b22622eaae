"""Image models of keras.applications, for any input size that they allow."""

from dataclasses import dataclass
from typing import Any, ClassVar

import keras

from ooodist.errors import UserError
from ooodist.models.base import (
    IMAGENET,
    DataDescription,
    ImageModelConfig,
    dense_head,
    finish,
)
from ooodist.models.imagenet import copy_imagenet_weights
from ooodist.models.interface import image_input, num_outputs
from ooodist.util.yaml_dataclass import Fraction

MIN_IMAGE_SIZE = 32
"""Pixels per side: keras.applications refuses smaller images, which vanish in five halvings."""


@dataclass(frozen=True, kw_only=True)
class ApplicationConfig(ImageModelConfig):
    """Settings common to all of these models: ``weights`` may be ``imagenet``.

    Each class has the name of the function in keras.applications, and Config behind it.
    """

    has_imagenet_weights: ClassVar[bool] = True

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that other models there do not have."""
        return {}


@dataclass(frozen=True, kw_only=True)
class ResNet50Config(ApplicationConfig):
    """ResNet-50 (He et al. 2015)."""

    name: ClassVar[str] = "resnet50"


@dataclass(frozen=True, kw_only=True)
class ResNet101Config(ApplicationConfig):
    """ResNet-101 (He et al. 2015)."""

    name: ClassVar[str] = "resnet101"


@dataclass(frozen=True, kw_only=True)
class ResNet152Config(ApplicationConfig):
    """ResNet-152 (He et al. 2015)."""

    name: ClassVar[str] = "resnet152"


@dataclass(frozen=True, kw_only=True)
class VGG16Config(ApplicationConfig):
    """VGG-16 (Simonyan and Zisserman 2014), as in Keras without dropout."""

    name: ClassVar[str] = "vgg16"


@dataclass(frozen=True, kw_only=True)
class DenseNet121Config(ApplicationConfig):
    """DenseNet-121 (Huang et al. 2016)."""

    name: ClassVar[str] = "densenet121"


@dataclass(frozen=True, kw_only=True)
class MobileNetV2Config(ApplicationConfig):
    """MobileNetV2 (Sandler et al. 2018). ``alpha`` multiplies the number of channels."""

    name: ClassVar[str] = "mobilenet_v2"

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha <= 0:
            raise UserError(
                f"model.alpha is {self.alpha}; it must be more than 0 (1 is the usual width)."
            )

    @property
    def options(self) -> dict[str, Any]:
        return {"alpha": self.alpha}


@dataclass(frozen=True, kw_only=True)
class MobileNetV3LargeConfig(MobileNetV2Config):
    """MobileNetV3-Large (Howard et al. 2019).

    ``alpha`` multiplies the number of channels; ``minimalistic`` leaves out squeeze-and-excite,
    hard-swish and 5x5 convolutions.
    """

    name: ClassVar[str] = "mobilenet_v3_large"

    minimalistic: bool = False
    dropout: Fraction = 0.2

    @property
    def options(self) -> dict[str, Any]:
        return {
            **super().options,
            "minimalistic": self.minimalistic,
            "dropout_rate": self.dropout,
            # The data is scaled where it is loaded, in the same way for all models.
            "include_preprocessing": False,
        }


def build_application(config: ApplicationConfig, data: DataDescription) -> keras.Model:
    """Builds the model: images (batch, height, width, channels) to logits (batch, outputs)."""
    application = getattr(keras.applications, type(config).__name__.removesuffix("Config"))
    inputs = image_input(config.name, data, MIN_IMAGE_SIZE)
    outputs = num_outputs(config.name, data, ("classification", "regression"))
    model = application(
        weights=None,
        input_tensor=inputs,
        # Read by some of the models even though the input tensor has the same shape.
        input_shape=inputs.shape[1:],
        classes=outputs,
        classifier_activation=None,
        **config.options,
    )
    logits = model.outputs[0]
    if config.dropout and isinstance(model.layers[-1], keras.layers.Dense):  # MobileNetV3 has it
        logits = dense_head(model.layers[-1].input, outputs, config)
    model = finish(inputs, logits, config.name)
    if config.weights == IMAGENET:
        copy_imagenet_weights(model, application, config.options, config.name)
    return model
