"""Converts layers and models that are made of other layers to functional models."""

from __future__ import annotations

import logging
from typing import Any

import keras

from ooodist.compat.keras_graph import function_nodes
from ooodist.compat.keras_layer import own_layers, own_variables, shapes_at_build, taking_symbols
from ooodist.pipeline.stages import Call

logger = logging.getLogger("ooodist")

SIZE = 8  # for an axis of unknown size, such as the length of a text


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
    for has_sizes in (False,) if call is None else (False, True):
        try:
            with taking_symbols(layer):
                return _traced(layer, call, has_sizes)
        except Exception as error:  # whatever a user's call does with a symbol
            logger.debug("warm start: %s cannot be called with symbols: %s", layer.name, error)
    return None


def _traced(layer: Any, call: Call | None, has_sizes: bool) -> Any:
    """Calls a layer with symbols; as if all sizes were known, if ``has_sizes``.

    Layers that make causal masks need the sizes.
    """
    if call is None:
        inputs = _symbols_of(layer)
        return keras.Function(inputs, layer.call(*inputs))
    symbols = {id(symbol): _sized(symbol) if has_sizes else symbol for symbol in call.inputs}
    args, kwargs = keras.tree.map_structure(
        lambda each: symbols.get(id(each), each), (call.arguments.args, call.arguments.kwargs)
    )
    inputs = [symbols[id(symbol)] for symbol in call.inputs]
    return keras.Function(inputs, layer.call(*args, **kwargs))


def _sized(symbol: Any) -> Any:
    """A symbol like this one of which all sizes are known."""
    shape = tuple(SIZE if size is None else size for size in symbol.shape)
    return keras.KerasTensor(shape, dtype=symbol.dtype)


def _symbols_of(layer: Any) -> list[Any]:
    """Makes new symbols of the shapes that a layer was built with."""
    shapes = shapes_at_build(layer)
    first = next(iter(shapes.values()))
    if isinstance(first, (list, dict)):
        raise TypeError("several inputs")
    return [keras.KerasTensor(tuple(first), dtype=layer.compute_dtype)]
