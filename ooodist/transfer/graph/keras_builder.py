"""Builds the graph of a Keras model: operators, weights, and what their axes run over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from ooodist.step.backward import names_by_id
from ooodist.transfer.graph import channels
from ooodist.transfer.graph.channels import Layout
from ooodist.transfer.graph.graph import Axis, Graph, Node, Role, Weight

LARGEST_GRID = 4096  # the most places of a Flatten that are told apart


@dataclass(frozen=True)
class Value:
    """A tensor of the model.

    Attributes:
        shape: its shape, with None for unknown sizes.
        layout: layout of the last axis; empty if unknown.
        node: the number of the operator that made it.
    """

    shape: tuple[int | None, ...]
    layout: Layout
    node: int


AxisOf = tuple[Role, Layout]
"""The role of a weight's axis in its operator, and what the axis runs over."""

FIXED: AxisOf = ("fixed", ())
KERNEL: AxisOf = ("kernel", ())


@dataclass(frozen=True)
class _Pending:
    """A weight whose spaces are not numbered yet."""

    name: str
    kind: str
    shape: tuple[int, ...]
    axes: tuple[AxisOf, ...]
    trainable: bool


@dataclass
class _Operator:
    name: str
    op: str
    inputs: tuple[int, ...]
    weights: list[_Pending]
    settings: dict[str, Any]


class GraphBuilder:
    """Builds the graph of a model, operator by operator."""

    def __init__(self, model: keras.Model) -> None:
        self._names = names_by_id(model)
        self._operators: list[_Operator] = []
        self._axes: dict[int, tuple[int, tuple[AxisOf, ...]]] = {}  # by id of variable: node, axes
        self._uses: dict[str, int] = {}

    def operator(self, name: str, op: str, inputs: Sequence[Value], **settings: Any) -> int:
        """Adds an operator that reads these tensors and returns its number."""
        self._uses[name] = number = self._uses.get(name, 0) + 1
        sources = tuple(dict.fromkeys(value.node for value in inputs))
        name = name if number == 1 else f"{name}:{number}"
        self._operators.append(_Operator(name, op, sources, [], settings))
        return len(self._operators) - 1

    def note(self, **settings: Any) -> None:
        """Adds settings to the newest operator."""
        self._operators[-1].settings |= settings

    def weight(self, node: int, variable: Any, kind: str, *axes: AxisOf) -> None:
        """Adds a variable with these axes to an operator; None is ignored."""
        if variable is None:
            return
        operator = self._operators[node]
        if id(variable) in self._axes:  # the layer is used again
            _, known = self._axes[id(variable)]
            for (_, this), (_, first) in zip(axes, known, strict=True):
                channels.join(first, this)
            return
        shape = tuple(variable.shape)
        checked = tuple(
            axis if _fits(axis, size) else FIXED for axis, size in zip(axes, shape, strict=True)
        )
        for before, now in zip(axes, checked, strict=True):
            if before is not now:
                channels.freeze(before[1])
        self._axes[id(variable)] = node, checked
        name = self._names[id(variable)]
        operator.weights.append(_Pending(name, kind, shape, checked, variable.trainable))

    def has(self, variable: Any) -> bool:
        """Whether this is a weight of the model, and not computed from some, as LoRA does."""
        return id(variable) in self._names

    @property
    def last(self) -> int:
        """The number of the newest operator."""
        return len(self._operators) - 1

    def owner(self, variable: Any) -> tuple[int, tuple[AxisOf, ...]] | None:
        """The operator that already has this variable, and the variable's axes."""
        return self._axes.get(id(variable))

    def unknown(self, layer: Any, inputs: Sequence[Value], shapes: Sequence[Any]) -> list[Value]:
        """Adds an operator of which nothing is known and returns its outputs."""
        for value in inputs:
            channels.freeze(value.layout)
        node = self.operator(layer.name, type(layer).__name__, inputs, unknown=1)
        self._fixed(node, getattr(layer, "weights", ()))
        return [
            Value(tuple(shape), channels.new(shape[-1] if shape else None, "fixed"), node)
            for shape in shapes
        ]

    def _fixed(self, node: int, variables: Iterable[Any]) -> None:
        """Adds weights of which nothing is known but their place among those of their layer."""
        for number, variable in enumerate(variables):
            kind = f"{number}:{variable.name}"
            self.weight(node, variable, kind, *[FIXED] * len(variable.shape))

    def inputs(self, symbols: Iterable[Any]) -> list[Value]:
        """Adds the inputs of a model and returns them."""
        values = []
        for number, symbol in enumerate(symbols):
            node = self.operator(f"input:{number}", "Input", [])
            shape = tuple(symbol.shape)
            is_number = symbol.dtype.startswith(("float", "bfloat"))
            layout = channels.new(shape[-1] if shape else None, "input") if is_number else ()
            values.append(Value(shape, layout, node))
        return values

    def graph(self, model: keras.Model, ends: Sequence[Value] = ()) -> Graph:
        """Makes the graph of what was added, and of the weights of the model that nothing uses.

        Args:
            model: the model.
            ends: its outputs, if they are known. What neither they nor any weights need is left
                out, such as the operators that make an attention's mask.
        """
        unused = [variable for variable in model.weights if id(variable) not in self._axes]
        if unused:
            self._fixed(self.operator("unused", "Unused", []), unused)
        numbering = channels.Numbering()
        kept = self._needed({value.node for value in ends} or {*range(len(self._operators))})
        number_of = {number: place for place, number in enumerate(kept)}
        nodes = []
        for each in map(self._operators.__getitem__, kept):
            weights = tuple(_weight(pending, numbering) for pending in each.weights)
            inputs = tuple(number_of[source] for source in each.inputs)
            settings = dict(each.settings)
            if "tied" in settings:
                settings["tied"] = number_of[settings["tied"]]
            nodes.append(Node(each.name, each.op, inputs, weights, settings))
        return Graph(tuple(nodes), numbering.spaces)

    def _needed(self, ends: set[int]) -> list[int]:
        """The inputs, these operators, those with weights, and all that they read."""
        needed = set(ends)
        for number in reversed(range(len(self._operators))):
            each = self._operators[number]
            if number in needed or each.weights or each.op == "Input":
                needed |= {number, *each.inputs}
        return sorted(needed)


def _fits(axis: AxisOf, size: int) -> bool:
    role, layout = axis
    return not layout or role == "grouped" or channels.size_of(layout) == size


def _weight(pending: _Pending, numbering: channels.Numbering) -> Weight:
    axes = tuple(
        Axis(size, role, numbering.segments(layout))
        for size, (role, layout) in zip(pending.shape, pending.axes, strict=True)
    )
    return Weight(pending.name, pending.kind, axes, pending.trainable)
