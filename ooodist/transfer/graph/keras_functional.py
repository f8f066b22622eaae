"""Converts layers and models that are made of other layers to functional models."""

from __future__ import annotations

import logging
from typing import Any

import keras

from ooodist.compat.keras_graph import function_nodes
from ooodist.compat.keras_layer import own_layers, own_variables, shapes_at_build
from ooodist.pipeline.stages import Call

logger = logging.getLogger("ooodist")


def as_functional(layer: Any, call: Call | None = None) -> Any | None:
    """Converts a layer made of other layers to a functional model; None if it is not one.

    Args:
        layer: a model or a layer.
        call: the call whose inputs to use; None: inputs of the shapes that it was built with.
    """
    if isinstance(layer, keras.Sequential) and layer.built and layer.inputs:
        return keras.Model(layer.inputs, layer.outputs)
    if function_nodes(layer) is not None:
        return layer
    if own_variables(layer) or not own_layers(layer):
        return None
    try:
        if call is not None:
            arguments = call.arguments
            return keras.Function(call.inputs, layer.call(*arguments.args, **arguments.kwargs))
        inputs = _symbols_of(layer)
        return keras.Function(inputs, layer.call(*inputs))
    except Exception as error:  # whatever a user's call does with a symbol
        logger.debug("warm start: %s cannot be called with symbols: %s", layer.name, error)
        return None


def _symbols_of(layer: Any) -> list[Any]:
    """Makes new symbols of the shapes that a layer was built with."""
    shapes = shapes_at_build(layer)
    first = next(iter(shapes.values()))
    if isinstance(first, (list, dict)):
        raise TypeError("several inputs")
    return [keras.KerasTensor(tuple(first), dtype=layer.compute_dtype)]
