"""A multilayer perceptron: dense layers on the flattened sample."""

from dataclasses import dataclass
from typing import ClassVar

import keras

from ooodist.errors import UserError
from ooodist.models.base import DataDescription, ModelConfig, finish
from ooodist.models.interface import feature_input, num_outputs
from ooodist.util.yaml_dataclass import Count, Fraction


@dataclass(frozen=True, kw_only=True)
class MlpConfig(ModelConfig):
    """Settings of an MLP. ``layers``: widths of the hidden layers, each followed by ``dropout``."""

    name: ClassVar[str] = "mlp"

    layers: tuple[Count, ...] = (128, 128)
    activation: str = "relu"
    dropout: Fraction = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            keras.activations.get(self.activation)
        except ValueError:
            raise UserError(
                f"model.activation is {self.activation!r}, which is no Keras activation; take for "
                "example relu, gelu, tanh, silu or linear (keras.activations lists all)."
            ) from None


def build_mlp(config: MlpConfig, data: DataDescription) -> keras.Model:
    """Builds the model: floating-point samples (batch, ...) to logits (batch, outputs)."""
    inputs = feature_input(config.name, data)
    outputs = num_outputs(config.name, data, ("classification", "regression"))
    x = keras.layers.Flatten(name="flatten")(inputs)
    for index, width in enumerate(config.layers):
        x = keras.layers.Dense(width, activation=config.activation, name=f"dense_{index}")(x)
        if config.dropout:
            x = keras.layers.Dropout(config.dropout, name=f"dropout_{index}")(x)
    return finish(inputs, keras.layers.Dense(outputs, name="predictions")(x), config.name)
