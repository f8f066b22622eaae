"""Derives the first and the last layer of a model from the data."""

from typing import Any

import keras
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.models.base import PRETRAINING, DataDescription


def feature_input(model: str, data: DataDescription) -> keras.KerasTensor:
    """The input for floating-point samples of any known shape: (batch, ...)."""
    spec = _single_spec(model, data)
    if not spec.dtype.is_floating:
        raise UserError(
            f"model {model} takes floating-point numbers, but the data gives {spec.dtype.name} "
            f"{tuple(spec.shape)}; convert them in the data (divide pixels by 255), or take a "
            "model for tokens: bert_12, bert_24, gpt or lstm."
        )
    return _input(spec)


def image_input(model: str, data: DataDescription, min_size: int = 1) -> keras.KerasTensor:
    """The input for images: (batch, height, width, channels).

    Raises UserError if the images have fewer than ``min_size`` pixels per side.
    """
    inputs = feature_input(model, data)
    shape = inputs.shape[1:]
    if len(shape) != 3:
        raise UserError(
            f"model {model} takes images of shape (height, width, channels), but the data gives "
            f"samples of shape {shape}; reshape them in the data, or take model mlp."
        )
    if min(shape[:2]) < min_size:
        raise UserError(
            f"model {model} takes images of at least {min_size}x{min_size} pixels, but the data "
            f"gives {shape[0]}x{shape[1]}; enlarge them with data.image_size: {min_size}, or take "
            "model resnet20 or mlp."
        )
    return inputs


def token_input(model: str, data: DataDescription) -> keras.KerasTensor:
    """The input for sequences of integer tokens: (batch, sequence length)."""
    spec = _single_spec(model, data)
    if not spec.dtype.is_integer or len(spec.shape) != 1:
        raise UserError(
            f"model {model} takes sequences of integer tokens, shape (sequence length,), but the "
            f"data gives {spec.dtype.name} {tuple(spec.shape)}; take text data (data: {{name: "
            "text}}), or another model (mlp takes any shape of floating-point numbers)."
        )
    return _input(spec)


def num_outputs(model: str, data: DataDescription, tasks: tuple[str, ...]) -> int:
    """The last layer's width. Raises UserError if the model is not for the data's task."""
    if data.task not in tasks:
        raise UserError(
            f"model {model} is made for {' or '.join(tasks)}, but the data's task is {data.task}; "
            "take other data, or another model (gpt, bert_12, bert_24 and lstm do language)."
        )
    if data.task == "regression":
        return 1 if data.num_classes is None else data.num_classes
    if data.num_classes is None or data.num_classes < 1:
        raise UserError(
            f"the data says num_classes: {data.num_classes} for the task {data.task}; model "
            f"{model} needs 1 or more to size its last layer: let the data give num_classes."
        )
    return data.num_classes


def vocabulary_size(model: str, data: DataDescription, configured: int | None) -> int:
    """The number of token embeddings: ``model.vocabulary_size``, or what the data has."""
    has_token_classes = data.task in ("language", PRETRAINING)
    smallest = num_outputs(model, data, (data.task,)) if has_token_classes else data.num_tokens
    if smallest is None:
        if configured is None:
            raise UserError(
                f"model {model} cannot know how many different tokens the data has, since the "
                f"data's task is {data.task}; set model.vocabulary_size."
            )
        return configured
    if configured is not None and configured < smallest:
        raise UserError(
            f"model.vocabulary_size is {configured}, but the data has {smallest} different "
            f"tokens; set it to {smallest} or more, or leave it out."
        )
    return smallest if configured is None else configured


def _single_spec(model: str, data: DataDescription) -> tf.TensorSpec:
    spec = data.input_spec
    if not isinstance(spec, tf.TensorSpec):
        raise UserError(
            f"model {model} takes one input, but the data gives {_outline(spec)}; give one tensor "
            "as x in the data, or use your own model (model: package.module:function)."
        )
    if not spec.shape.is_fully_defined() or 0 in spec.shape:
        raise UserError(
            f"model {model} needs samples of one known, non-empty shape, but the data gives "
            f"{spec.shape}; pad, crop or resize the samples in the data."
        )
    return spec


def _outline(structure: Any) -> str:
    if isinstance(structure, dict):
        return f"a dict with {', '.join(map(str, structure))}"
    return f"a {type(structure).__name__}"


def _input(spec: tf.TensorSpec) -> keras.KerasTensor:
    return keras.Input(tuple(spec.shape), dtype=spec.dtype.name, name="input")
