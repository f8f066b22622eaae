"""Rules for Keras layers and functions without weights: what they do to units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ooodist.pipeline.stages import Call
from ooodist.transfer.graph import channels
from ooodist.transfer.graph.channels import Layout
from ooodist.transfer.graph.keras_builder import LARGEST_GRID, GraphBuilder, Value
from ooodist.transfer.graph.keras_kinds import ACROSS_UNITS, changes_nothing, kind_of

Rule = Callable[[GraphBuilder, Any, Sequence[Value], Call], Layout]
"""Adds a layer's operator and weights; returns the layout of its output."""


def unknown_layout(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    return builder.unknown(layer, given, [tuple(call.outputs[0].shape)])[0].layout


def joined(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    """Joins several tensors element by element; one of a single unit is broadcast."""
    largest = max(given, key=lambda value: channels.size_of(value.layout))
    for value in given:
        if value is not largest and channels.size_of(value.layout) > 1:
            channels.join(largest.layout, value.layout)
    constant = _constant(call) if kind_of(layer) == "Multiply" else None
    settings = {} if constant is None else {"times": constant}
    builder.operator(layer.name, kind_of(layer), given, **settings)
    return largest.layout


def _constant(call: Call) -> float | None:
    """The one number with which a single tensor is multiplied, if it is one."""
    others = [
        each
        for each in keras.tree.flatten([call.arguments.args, call.arguments.kwargs])
        if not isinstance(each, keras.KerasTensor)
    ]
    if len(call.inputs) > 1 or len(others) != 1 or isinstance(others[0], keras.Variable):
        return None
    value = np.asarray(others[0]).astype(np.float64)
    return value.item() if value.size == 1 and np.isfinite(value).all() else None


def concatenated(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    builder.operator(layer.name, kind_of(layer), given)
    if layer.axis in (-1, len(given[0].shape) - 1):
        return tuple(stretch for value in given for stretch in value.layout)
    for value in given[1:]:
        channels.join(given[0].layout, value.layout)
    return given[0].layout


def flat(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    value = given[0]
    builder.operator(layer.name, "Flatten", given)
    grid = tuple(size or 0 for size in value.shape[1:-1])  # 0: unknown
    if not value.layout or 0 in grid or math.prod(grid) > LARGEST_GRID:
        channels.freeze(value.layout)
        return channels.new(call.outputs[0].shape[-1], "fixed")
    return channels.on_grid(value.layout, grid)


def reshaped(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    value, shape = given[0], call.outputs[0].shape
    if shape[-1] is not None and shape[-1] == value.shape[-1]:
        builder.operator(layer.name, "Reshape", given)
        return value.layout
    if len(shape) == 2:
        return flat(builder, layer, given, call)
    return unknown_layout(builder, layer, given, call)


def dot(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    """Sums products of units; stretch.py makes sure that copies do not add to the sums."""
    axes = [layer.axes] * 2 if isinstance(layer.axes, int) else layer.axes
    ranks = [len(value.shape) for value in given]
    if [axis % rank for axis, rank in zip(axes, ranks, strict=True)] != [r - 1 for r in ranks]:
        return unknown_layout(builder, layer, given, call)
    channels.join(given[0].layout, given[1].layout)
    builder.operator(layer.name, "Dot", given)
    return channels.new(call.outputs[0].shape[-1], "fixed")


def permuted(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    if layer.dims[-1] != len(layer.dims):
        return unknown_layout(builder, layer, given, call)
    return kept(builder, layer, given, call)


def taken(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    """Takes ``x[key]``: the layout stays if the last axis is not indexed."""
    arguments = [*call.arguments.args, *call.arguments.kwargs.values()]
    key = next((a for a in arguments[1:] if a is not None), ())
    key = key if isinstance(key, tuple) else (key,)
    if len(key) >= len(given[0].shape) or any(part is Ellipsis for part in key):
        last = key[-1]
        if not (isinstance(last, slice) and last == slice(None)):
            return unknown_layout(builder, layer, given, call)
    return kept(builder, layer, given, call)


def split(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    if layer.axis in (-1, len(given[0].shape) - 1):
        return unknown_layout(builder, layer, given, call)
    return kept(builder, layer, given, call)


def reduced(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    """Reduces axes other than the last; also the last, if copies do not change the result."""
    last = len(given[0].shape) - 1
    axes = [layer.axis] if isinstance(layer.axis, int) else layer.axis
    reduced_axes = None if axes is None else [each % (last + 1) for each in axes]
    if reduced_axes == [last] and kind_of(layer) != "Sum":
        channels.average(given[0].layout)
        builder.operator(layer.name, kind_of(layer), given)
        return channels.new(call.outputs[0].shape[-1], "fixed")
    if reduced_axes is None or last in reduced_axes:
        return unknown_layout(builder, layer, given, call)
    return kept(builder, layer, given, call)


def kept(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    """Keeps the layout, as pooling, padding and activations treat all units alike."""
    builder.operator(layer.name, kind_of(layer), given)
    return given[0].layout


def activation(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    op = kind_of(layer)
    if op.lower() in ACROSS_UNITS:
        channels.freeze(given[0].layout)
    if not changes_nothing(layer):
        builder.operator(layer.name, op, given)
    return given[0].layout


def passed(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    return given[0].layout


def padded_shortcut(
    builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call
) -> Layout:
    builder.operator(layer.name, "PaddedShortcut", given)
    more = layer.filters - channels.size_of(given[0].layout)
    return (*given[0].layout, *channels.new(more)) if more > 0 else given[0].layout
