"""What Keras keeps in a layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

Moments = Callable[[tf.Tensor, tf.Tensor | None], tuple[tf.Tensor, tf.Tensor]]


def is_from_keras(thing: Any) -> bool:
    """Whether the class of a layer or metric is one of Keras, and not of a user.

    Its modules are ``keras.src.…`` (since Keras 3.0); no public attribute says so.
    """
    return type(thing).__module__.startswith("keras.src.")


def own_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Variables of a layer that are of no layer in it: ``_trainable_variables`` and the others.

    The public lists have those of inner layers, too.
    """
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def own_layers(layer: keras.Layer) -> list[keras.Layer]:
    """The layers that a layer has as attributes: ``Layer._layers``.

    Only models have the public ``layers``.
    """
    found: list[keras.Layer] = list(layer._layers)
    return found


def shapes_at_build(layer: keras.Layer) -> Mapping[str, Any]:
    """The shapes with which a layer was built, by argument: ``_build_shapes_dict`` (Keras 3.0).

    The public ``get_build_config`` has the first one alone, or nothing.
    """
    shapes: Mapping[str, Any] = layer._build_shapes_dict
    return shapes


def embedding_table(layer: keras.layers.Embedding) -> keras.Variable:
    """The table itself: ``Embedding._embeddings`` (since Keras 3.0).

    The public ``embeddings`` adds what LoRA has learned, and is no variable then.
    """
    return layer._embeddings


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """Over which axes a batch norm that is built takes its moments: ``_reduction_axes``.

    The public ``axis`` is the one that is left, and may be negative.
    """
    axes: list[int] = layer._reduction_axes
    return axes


@contextlib.contextmanager
def replaced_moments(layer: keras.layers.BatchNormalization, moments: Moments) -> Iterator[None]:
    """In this block a batch norm takes mean and variance of a batch from ``moments``.

    ``BatchNormalization._moments`` (since Keras 3.0) is the one place where it computes them; the
    public ``synchronized=True`` goes through tf.distribute alone.

    Args:
        moments: gets the inputs and their mask; gives mean and variance, of a channel each.
    """
    layer._moments = moments  # on the instance
    try:
        yield
    finally:
        del layer._moments
