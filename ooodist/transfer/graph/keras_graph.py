"""Makes the graph of a Keras model: its operators, and which units belong together.

Nested models, and custom layers that are made of other layers, are taken apart; a layer of which
nothing is known keeps its units as they are (``fixed``). A subclassed model with a custom ``call``
is taken apart by calling it once with symbols; if that fails, it becomes a chain of its layers,
each of which only fits one of the same shapes.
"""

from __future__ import annotations

import logging

import keras

from ooodist.compat.keras_model import layers_of
from ooodist.errors import UserError
from ooodist.transfer.graph import channels, keras_layers
from ooodist.transfer.graph.graph import Graph
from ooodist.transfer.graph.keras_builder import GraphBuilder, Value
from ooodist.transfer.graph.keras_functional import as_functional

logger = logging.getLogger("ooodist")


def graph_of(model: keras.Model) -> Graph:
    """The graph of a built model.

    Raises:
        UserError: the model is not built, so that its weights are unknown.
    """
    if not model.built:
        raise UserError(
            f"model {model.name} has no weights yet; build it, or call it once with a batch, "
            "before it is given to the zoo"
        )
    builder = GraphBuilder(model)
    functional = as_functional(model)
    if functional is None:
        logger.warning(
            "warm start: model %s has a call of its own that takes no symbols; it is taken as the "
            "chain of its layers, which only fit layers of the same shapes",
            model.name,
        )
        before = [Value((), (), builder.operator("input:0", "Input", []))]
        for layer in layers_of(model, include_self=False, recursive=False):
            before = builder.unknown(layer, before, [()])
        return builder.graph(model)
    inputs = builder.inputs(keras.tree.flatten(functional.inputs))
    outputs = keras_layers.walk(builder, functional, inputs)
    for value in outputs:
        channels.freeze(value.layout, "output")
    return builder.graph(model, outputs)
