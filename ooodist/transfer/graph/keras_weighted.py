"""Rules for Keras layers with weights: which units each axis of a weight runs over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ooodist.compat.keras_layer import embedding_table
from ooodist.models.layers import TokenEmbedding
from ooodist.pipeline.stages import Call
from ooodist.transfer.graph import channels
from ooodist.transfer.graph.channels import Layout
from ooodist.transfer.graph.keras_builder import FIXED, KERNEL, AxisOf, GraphBuilder, Value
from ooodist.transfer.graph.keras_kinds import RECURRENT, kind_of, sliding
from ooodist.transfer.graph.keras_plain import unknown_layout


def dense(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    out = channels.new(layer.units)
    node = builder.operator(layer.name, "Dense", given)
    builder.weight(node, layer.kernel, "kernel", ("in", given[0].layout), ("out", out))
    builder.weight(node, layer.bias, "bias", ("out", out))
    return out


def einsum_dense(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    """An EinsumDense that does what Dense does, as with ``btf,fd->btd``."""
    read, kernel, made = re.split(",|->", layer.equation.replace(" ", ""))
    is_dense = read[:-1] == made[:-1] and kernel == read[-1] + made[-1]
    if not is_dense or layer.bias_axes not in (None, made[-1]):
        return unknown_layout(builder, layer, given, call)
    out = channels.new(layer.kernel.shape[1])
    node = builder.operator(layer.name, "Dense", given)
    builder.weight(node, layer.kernel, "kernel", ("in", given[0].layout), ("out", out))
    builder.weight(node, layer.bias, "bias", ("out", out))
    return out


def convolution(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    layout, groups = given[0].layout, layer.groups
    if groups > 1 and groups == channels.size_of(layout):  # a depthwise convolution
        reads: AxisOf = FIXED
        makes: AxisOf = ("unit", multiplied(layout, layer.filters // groups))
    else:
        out = channels.new(layer.filters)
        if groups > 1:
            for each in (layout, out):
                channels.cut(each, [channels.size_of(each) // groups] * groups)
        reads, makes = ("in" if groups == 1 else "grouped", layout), ("out", out)
    node = builder.operator(layer.name, kind_of(layer), given, **sliding(layer, given[0]))
    builder.weight(node, layer.kernel, "kernel", *[KERNEL] * layer.rank, reads, makes)
    builder.weight(node, layer.bias, "bias", makes)
    return makes[1]


def transposed(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    out = channels.new(layer.filters)
    # It is the gradient of a convolution that reads the pixels that this layer makes.
    settings = sliding(layer, given[0])
    settings["pixels"] = [
        -1 if size < 0 else size * stride
        for size, stride in zip(settings["pixels"], settings["strides"], strict=True)
    ]
    node = builder.operator(layer.name, kind_of(layer), given, **settings)
    axes = (*[KERNEL] * layer.rank, ("out", out), ("in", given[0].layout))
    builder.weight(node, layer.kernel, "kernel", *axes)
    builder.weight(node, layer.bias, "bias", ("out", out))
    return out


def depthwise(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    layout = given[0].layout
    out = multiplied(layout, layer.depth_multiplier)
    node = builder.operator(layer.name, kind_of(layer), given, **sliding(layer, given[0]))
    axes = (*[KERNEL] * layer.rank, ("unit", layout), FIXED)
    builder.weight(node, layer.kernel, "kernel", *axes)
    builder.weight(node, layer.bias, "bias", ("unit", out))
    return out


def separable(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    layout, out = given[0].layout, channels.new(layer.filters)
    between = multiplied(layout, layer.depth_multiplier)
    node = builder.operator(layer.name, kind_of(layer), given, **sliding(layer, given[0]))
    kernel = [KERNEL] * layer.rank
    builder.weight(node, layer.depthwise_kernel, "depthwise", *kernel, ("unit", layout), FIXED)
    builder.weight(node, layer.pointwise_kernel, "kernel", *kernel, ("in", between), ("out", out))
    builder.weight(node, layer.bias, "bias", ("out", out))
    return out


def multiplied(layout: Layout, multiplier: int) -> Layout:
    """The layout of an axis with so many indices for each of these."""
    return tuple(replace(each, inner=each.inner * multiplier) for each in layout)


def batch_norm(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    if layer.axis not in (-1, len(given[0].shape) - 1):
        return unknown_layout(builder, layer, given, call)
    layout = given[0].layout
    node = builder.operator(layer.name, "BatchNormalization", given, epsilon=layer.epsilon)
    for kind in ("gamma", "beta", "moving_mean", "moving_variance"):
        builder.weight(node, getattr(layer, kind, None), kind, ("unit", layout))
    return layout


def layer_norm(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    if [axis % len(given[0].shape) for axis in axes] != [len(given[0].shape) - 1]:
        return unknown_layout(builder, layer, given, call)
    layout = given[0].layout
    channels.average(layout)
    node = builder.operator(layer.name, kind_of(layer), given)
    for kind in ("gamma", "beta", "scale"):
        value = getattr(layer, kind, None)
        if hasattr(value, "path"):  # some have an option of this name
            builder.weight(node, value, kind, ("unit", layout))
    return layout


def group_norm(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    layout = given[0].layout
    size = channels.size_of(layout)
    groups = size if layer.groups == -1 else layer.groups
    if layer.axis not in (-1, len(given[0].shape) - 1) or not layout:
        return unknown_layout(builder, layer, given, call)
    if groups < size:
        channels.cut(layout, [size // groups] * groups)
        channels.average(layout)
    node = builder.operator(layer.name, "GroupNormalization", given)
    builder.weight(node, layer.gamma, "gamma", ("unit", layout))
    builder.weight(node, layer.beta, "beta", ("unit", layout))
    return layout


def embedding(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    table = layer.table if isinstance(layer, TokenEmbedding) else embedding_table(layer)
    if call.arguments.kwargs.get("reverse", False):
        return _reversed_embedding(builder, layer, table, given, call)
    width = channels.new(table.shape[1])
    vocabulary = channels.new(table.shape[0], "input")
    node = builder.operator(layer.name, "Embedding", given)
    builder.weight(node, table, "table", ("unit", vocabulary), ("out", width))
    # Made with the layer, though only the reversed call uses it.
    bias = getattr(layer, "bias", None)
    builder.weight(node, bias, "reverse_bias", ("unit", vocabulary))
    untied = getattr(layer, "reverse_embeddings", None)
    if untied is not None:
        builder.weight(
            node, untied, "reverse", ("in", channels.new(untied.shape[0])), ("unit", vocabulary)
        )
    return width


def _reversed_embedding(
    builder: GraphBuilder, layer: Any, table: Any, given: Sequence[Value], call: Call
) -> Layout:
    untied = getattr(layer, "reverse_embeddings", None)
    owner = builder.owner(table if untied is None else untied)
    if owner is None:
        return unknown_layout(builder, layer, given, call)
    node, axes = owner
    # A tied table is read across: its columns are summed over, and each row makes a number.
    (_, vocabulary), (_, width) = axes if untied is None else axes[::-1]
    channels.join(width, given[0].layout)
    settings = {"tied": node} if untied is None else {}
    builder.operator(layer.name, "ReversedEmbedding", given, **settings)
    return vocabulary


def positions(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    layout = given[0].layout
    node = builder.operator(layer.name, "PositionEmbedding", given)
    places = channels.new(layer.positions.shape[0], "input")
    builder.weight(node, layer.positions, "positions", ("unit", places), ("unit", layout))
    return layout


def class_token(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    node = builder.operator(layer.name, "ClassToken", given)
    builder.weight(node, layer.token, "token", FIXED, FIXED, ("unit", given[0].layout))
    return given[0].layout


def attention(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    named = dict(zip(("query", "value", "key"), call.arguments.args, strict=False))
    named |= call.arguments.kwargs
    value_of = {id(s): v for s, v in zip(call.inputs, given, strict=False)}
    query = value_of.get(id(named["query"]))
    value = value_of.get(id(named["value"]))
    key = value if named.get("key") is None else value_of.get(id(named["key"]))
    rank = len(given[0].shape)
    is_plain = rank == 3 and len(call.outputs[0].shape) == 3
    parts = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    is_plain &= all(builder.has(part.kernel) for part in parts)  # not with LoRA
    if query is None or value is None or key is None or not is_plain:
        return unknown_layout(builder, layer, given, call)
    heads = channels.new(layer.num_heads)
    key_width, value_width = channels.new(layer.key_dim), channels.new(layer.value_dim)
    out = channels.new(call.outputs[0].shape[-1])
    node = builder.operator(
        layer.name, "MultiHeadAttention", [query, value, key], dots="query/kernel query/bias"
    )
    reads = {"query": (query, key_width), "key": (key, key_width), "value": (value, value_width)}
    for name, (source, width) in reads.items():
        part = getattr(layer, f"{name}_dense")
        axes: tuple[AxisOf, AxisOf] = (("out", heads), ("out", width))
        builder.weight(node, part.kernel, f"{name}/kernel", ("in", source.layout), *axes)
        builder.weight(node, part.bias, f"{name}/bias", *axes)
    last = layer.output_dense
    builder.weight(
        node, last.kernel, "output/kernel", ("in", heads), ("in", value_width), ("out", out)
    )
    builder.weight(node, last.bias, "output/bias", ("out", out))
    return out


def recurrent(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    node = builder.operator(layer.name, kind_of(layer), given)
    out = _recurrent_weights(builder, node, layer.cell, given[0].layout)
    for state in given[1:]:
        channels.join(out, state.layout)
    return out


def bidirectional(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    parts = layer.forward_layer, layer.backward_layer
    known = all(type(part) in RECURRENT for part in parts) and not layer.return_state
    if not known or layer.merge_mode is None or len(given) > 1:
        return unknown_layout(builder, layer, given, call)
    op = f"Bidirectional:{kind_of(parts[0])}:{layer.merge_mode}"
    node = builder.operator(layer.name, op, given)
    forward, backward = (
        _recurrent_weights(builder, node, part.cell, given[0].layout, f"{name}/")
        for part, name in zip(parts, ("forward", "backward"), strict=True)
    )
    if layer.merge_mode == "concat":
        return (*forward, *backward)
    channels.join(forward, backward)
    return forward


def _recurrent_weights(
    builder: GraphBuilder, node: int, cell: Any, reads: Layout, prefix: str = ""
) -> Layout:
    out = channels.new(cell.units)
    made = channels.on_grid(out, (cell.kernel.shape[1] // cell.units,))  # all gates
    builder.weight(node, cell.kernel, f"{prefix}kernel", ("in", reads), ("out", made))
    builder.weight(node, cell.recurrent_kernel, f"{prefix}recurrent", ("in", out), ("out", made))
    if cell.bias is not None:
        fixed = [FIXED] * (len(cell.bias.shape) - 1)
        builder.weight(node, cell.bias, f"{prefix}bias", *fixed, ("out", made))
    return out


def prelu(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    node = builder.operator(layer.name, "PReLU", given)
    others = [FIXED] * (len(layer.alpha.shape) - 1)
    builder.weight(node, layer.alpha, "alpha", *others, ("unit", given[0].layout))
    return given[0].layout
