"""A user's model: a function ``package.module:function`` that returns a Keras model."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import keras
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.models.base import DataDescription, ModelConfig


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
        module, _, function = self.function.partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), *function.split(".")]):
            raise UserError(
                f"model {self.function!r} does not name a function; write package.module:function."
            )


def build_from_function(config: FunctionConfig, data: DataDescription) -> keras.Model:
    """Returns the function's model, built for the data's shapes if it was not built yet.

    Raises UserError if there is no such function, it does not take the arguments, or it
    returns anything but a Keras model. Errors inside the function are passed on as they are.
    """
    function = _find(config.function)
    _check_arguments(function, config)
    model = function(**config.arguments)
    if not isinstance(model, keras.Model):
        raise UserError(
            f"model {config.function} returned {type(model).__name__}; it must return a "
            "keras.Model (of the keras package that TensorFlow 2.16 and later use)."
        )
    if not model.built:
        # A subclassed model has no weights before it has seen an input.
        model(tf.nest.map_structure(_one_zero_sample, data.input_spec))
    return model


def _find(path: str) -> Callable[..., Any]:
    module_name, _, function_name = path.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # An import inside the user's module: the traceback shows where.
        raise UserError(
            f"model {path}: there is no Python module {error.name!r}; start in the folder that "
            "holds it, add that folder to PYTHONPATH, or correct the name."
        ) from error
    for attribute in function_name.split("."):
        if not hasattr(target, attribute):
            raise UserError(
                f"model {path}: module {module_name} has no {function_name!r}; correct the name, "
                "or define the function there."
            )
        target = getattr(target, attribute)
    if not callable(target):
        raise UserError(
            f"model {path}: {function_name} is a {type(target).__name__}; it must be a function "
            "that returns a keras.Model."
        )
    function: Callable[..., Any] = target
    return function


def _check_arguments(function: Callable[..., Any], config: FunctionConfig) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(**config.arguments)
    except TypeError as error:
        raise UserError(
            f"model {config.function}{signature} cannot be called with model.arguments "
            f"{dict(config.arguments)}: {error}."
        ) from error


def _one_zero_sample(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros((1, *spec.shape), spec.dtype)
