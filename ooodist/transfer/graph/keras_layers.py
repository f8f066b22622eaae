"""Adds the layers of a Keras model to its graph, each by a rule: what it does to units.

A layer's activation becomes an operator of its own, so that ``Dense(8, "relu")`` and a Dense
followed by a ReLU are the same. What changes nothing at inference (dropout, noise, ``linear``) is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import layers

from ooodist.compat.keras_layer import is_from_keras, own_layers
from ooodist.models.layers import ClassToken, PaddedShortcut, PositionEmbedding, TokenEmbedding
from ooodist.pipeline.stages import Call, calls_of_nodes, nodes_of
from ooodist.transfer.graph import channels, keras_plain, keras_weighted
from ooodist.transfer.graph.keras_builder import GraphBuilder, Value
from ooodist.transfer.graph.keras_described import described, description_of
from ooodist.transfer.graph.keras_functional import as_functional
from ooodist.transfer.graph.keras_kinds import (
    ACROSS_UNITS,
    ELEMENTWISE,
    NOISE,
    RECURRENT,
    REVERSIBLE,
    changes_nothing,
    function_name,
    is_channels_last,
)
from ooodist.transfer.graph.keras_plain import Rule

LEAST_RANGE, MOST_RANGE = 16, 2**16  # of whole numbers that stand for what an image has


def walk(builder: GraphBuilder, model: Any, given: Sequence[Value | None]) -> list[Value]:
    """Adds the calls of a functional model with these tensors as inputs; returns its outputs.

    None stands for an input of which nothing is known, such as a mask.
    """
    # Masks come last.
    symbols = zip(keras.tree.flatten(model.inputs), given, strict=False)
    values = {
        id(symbol): replace(value, shape=tuple(symbol.shape))  # there, all sizes may be known
        for symbol, value in symbols
        if value is not None
    }
    for call in calls_of_nodes(nodes_of(model)):
        made = _apply(builder, call, values)
        values |= zip(map(id, call.outputs), made, strict=False)  # none for a mask
    return [values[id(symbol)] for symbol in keras.tree.flatten(model.outputs)]


def _apply(builder: GraphBuilder, call: Call, values: Mapping[int, Value]) -> list[Value]:
    """Adds a call and returns its outputs; ``values``: by symbol id. Masks are constants."""
    layer = call.layer
    known = [s for s in call.inputs if id(s) in values and s.dtype != "bool"]
    given = [values[id(symbol)] for symbol in known]
    shapes = [tuple(symbol.shape) for symbol in call.outputs]
    if all(symbol.dtype == "bool" for symbol in call.outputs) or not given:
        return []
    description = description_of(layer)
    inner = as_functional(layer, call) if description is None and _is_composite(layer) else None
    if inner is not None:
        made = walk(builder, inner, [values.get(id(symbol)) for symbol in call.inputs])
        return [replace(value, shape=shape) for value, shape in zip(made, shapes, strict=True)]
    call = call._replace(inputs=tuple(known))
    like = None if description is None else description.like
    rule = _rule(layer, like) if description is None or like else described
    if rule is None:
        unknown = builder.unknown(layer, given, shapes)
        builder.note(**_range(layer))
        return unknown
    layout = rule(builder, layer, given, call)
    builder.note(**_range(layer))
    if changes_nothing(layer):
        return [replace(given[0], shape=shapes[0], layout=layout)]
    node = builder.last
    for shape in shapes:
        if layout and shape and shape[-1] not in (None, channels.size_of(layout)):
            channels.freeze(layout)
            layout = channels.new(shape[-1], "fixed")
    made = [Value(shape, layout, node) for shape in shapes]
    if rule is described:
        return made
    return _activated(builder, layer, made)


def _range(layer: Any) -> dict[str, int]:
    """The largest number that a layer scales down, such as 255 of an image's, if large."""
    largest = 0.0
    if isinstance(layer, layers.Rescaling):
        scale = np.asarray(layer.scale, float)
        if (scale > 0).all():
            largest = float(((1 - np.asarray(layer.offset)) / scale).max())
    elif isinstance(layer, layers.Normalization) and not layer.invert:
        mean, variance = layer.mean, layer.variance
        if mean is not None and variance is not None:
            mean, deviation = np.asarray(mean), np.sqrt(np.asarray(variance))
            largest = float((mean + 2 * deviation).max()) if (mean > deviation).all() else 0.0
    return {"takes": round(largest)} if LEAST_RANGE <= largest <= MOST_RANGE else {}


def _is_composite(layer: Any) -> bool:
    if isinstance(layer, keras.Model):
        return True
    return isinstance(layer, layers.Layer) and not is_from_keras(layer) and bool(own_layers(layer))


def _activated(builder: GraphBuilder, layer: Any, made: list[Value]) -> list[Value]:
    """Adds the activation of a layer that has one; returns its outputs."""
    function = getattr(layer, "activation", None)
    if function is None or isinstance(layer, (layers.Activation, *RECURRENT)):
        return made
    name = function_name(function)
    if name == "linear":
        return made
    return [_behind(builder, f"{layer.name}/{name}", name, value) for value in made]


def _behind(builder: GraphBuilder, name: str, op: str, value: Value) -> Value:
    if op in ACROSS_UNITS:
        channels.freeze(value.layout)
    return replace(value, node=builder.operator(name, op, [value]))


def _in_1_to_3_dimensions(*names: str) -> tuple[type, ...]:
    return tuple(getattr(layers, f"{name}{number}D") for name in names for number in (1, 2, 3))


# A layer gets the rule of the first entry that it is an instance of.
_RULES: tuple[tuple[tuple[type, ...], Rule], ...] = (
    (NOISE, keras_plain.passed),
    ((layers.Dense,), keras_weighted.dense),
    ((layers.EinsumDense,), keras_weighted.einsum_dense),
    ((layers.SeparableConv1D, layers.SeparableConv2D), keras_weighted.separable),
    ((layers.DepthwiseConv1D, layers.DepthwiseConv2D), keras_weighted.depthwise),
    (
        (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose),
        keras_weighted.transposed,
    ),
    ((layers.Conv1D, layers.Conv2D, layers.Conv3D), keras_weighted.convolution),
    ((layers.BatchNormalization,), keras_weighted.batch_norm),
    ((layers.LayerNormalization, layers.RMSNormalization), keras_weighted.layer_norm),
    ((layers.GroupNormalization,), keras_weighted.group_norm),
    ((layers.Embedding, *REVERSIBLE, TokenEmbedding), keras_weighted.embedding),
    ((PositionEmbedding,), keras_weighted.positions),
    ((ClassToken,), keras_weighted.class_token),
    ((PaddedShortcut,), keras_plain.padded_shortcut),
    ((layers.MultiHeadAttention,), keras_weighted.attention),
    (RECURRENT, keras_weighted.recurrent),
    ((layers.Bidirectional,), keras_weighted.bidirectional),
    ((layers.Dot,), keras_plain.dot),
    ((layers.PReLU,), keras_weighted.prelu),
    (
        (layers.Activation, layers.ReLU, layers.LeakyReLU, layers.ELU, layers.Softmax),
        keras_plain.activation,
    ),
    (
        (
            layers.Add,
            layers.Subtract,
            layers.Multiply,
            layers.Average,
            layers.Maximum,
            layers.Minimum,
        ),
        keras_plain.joined,
    ),
    ((layers.Concatenate,), keras_plain.concatenated),
    ((layers.Flatten,), keras_plain.flat),
    ((layers.Reshape,), keras_plain.reshaped),
    ((layers.Permute,), keras_plain.permuted),
    (
        (
            *_in_1_to_3_dimensions("ZeroPadding", "Cropping", "UpSampling"),
            *_in_1_to_3_dimensions("AveragePooling", "MaxPooling"),
            *_in_1_to_3_dimensions("GlobalAveragePooling", "GlobalMaxPooling"),
            layers.RepeatVector,
            layers.Rescaling,
            layers.Resizing,
            layers.RandomFlip,
            layers.RandomTranslation,
            layers.RandomRotation,
            layers.RandomZoom,
            layers.RandomContrast,
            layers.RandomBrightness,
            layers.RandomCrop,
            layers.CenterCrop,
        ),
        keras_plain.kept,
    ),
)

# Functions of keras.ops, and what Python's operators become, by the names of their classes.
_OPERATIONS: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, keras_plain.kept),
    **dict.fromkeys(
        ("Add", "Subtract", "Multiply", "TrueDivide", "Divide", "Maximum", "Minimum", "Power"),
        keras_plain.joined,
    ),
    **dict.fromkeys(("Mean", "Sum", "Max", "Min"), keras_plain.reduced),
    **dict.fromkeys(("ExpandDims", "Squeeze", "Reshape"), keras_plain.reshaped),
    "GetItem": keras_plain.taken,
    "Concatenate": keras_plain.concatenated,
    "Split": keras_plain.split,
}


def _rule(layer: Any, like: Any) -> Rule | None:
    """The rule of a layer, or that of the class that it computes the same ``like``, if any."""
    if not isinstance(layer, layers.Layer):
        return _OPERATIONS.get(type(layer).__name__)
    # With LoRA or quantization, the attribute ``kernel`` is not one of the weights.
    if getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None):
        return None
    call = (like or type(layer)).call  # nothing is known of a subclass that has its own
    found = next(
        (
            rule
            for kinds, rule in _RULES
            for kind in kinds
            if isinstance(layer, kind) and call is getattr(kind, "call", None)
        ),
        None,
    )
    if found is None or is_channels_last(layer) or isinstance(layer, NOISE):
        return found
    return keras_plain.unknown_layout
