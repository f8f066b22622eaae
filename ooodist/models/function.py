"""A user's model: a function ``package.module:function`` that returns a Keras model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import keras
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.models.base import DataDescription, ModelConfig
from ooodist.util.user_functions import call_users, names_a_function


@dataclass(frozen=True, kw_only=True)
class FunctionConfig(ModelConfig):
    """Settings of a user's model.

    ``function``: "package.module:function"; ``arguments``: passed to it by keyword.
    """

    name: ClassVar[str] = "package.module:function"

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not names_a_function(self.function):
            raise UserError(
                f"model {self.function!r} does not name a function; write package.module:function."
            )


def build_from_function(config: FunctionConfig, data: DataDescription) -> keras.Model:
    """The function's model, built for the data's shapes if it was not built yet.

    Raises UserError if there is no such function, it does not take the arguments, or it
    returns anything but a Keras model. Errors inside the function are passed on as they are.
    """
    model = call_users(config.function, config.arguments, "model", "a keras.Model")
    if not isinstance(model, keras.Model):
        raise UserError(
            f"model {config.function} returned {type(model).__name__}; it must return a "
            "keras.Model (of the keras package that TensorFlow 2.16 and later use)."
        )
    if not model.built:
        # A subclassed model has no weights before it has seen an input.
        model(tf.nest.map_structure(_one_zero_sample, data.input_spec))
    return model


def _one_zero_sample(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros((1, *spec.shape), spec.dtype)
