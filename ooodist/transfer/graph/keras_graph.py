"""Makes the graph of a Keras model: its operators, and which units belong together.

Nested models, and custom layers that are made of other layers, are taken apart; a layer of which
nothing is known keeps its units as they are (``fixed``). A subclassed model with a custom ``call``
is taken apart by calling it once with symbols; if that fails, it becomes a chain of its layers,
each of which only fits one of the same shapes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from ooodist.compat.keras_graph import function_nodes
from ooodist.compat.keras_layer import own_layers, own_variables, shapes_at_build
from ooodist.compat.keras_model import layers_of
from ooodist.errors import UserError
from ooodist.pipeline.stages import Call, calls_of_nodes, nodes_of
from ooodist.step.backward import names_by_id
from ooodist.transfer.graph import channels
from ooodist.transfer.graph.channels import Layout
from ooodist.transfer.graph.graph import Axis, Graph, Node, Role, Weight

logger = logging.getLogger("ooodist")

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


class Walker:
    """Builds the graph call by call, by the rules of keras_layers.py."""

    def __init__(self, model: keras.Model) -> None:
        self._names = names_by_id(model)
        self._operators: list[_Operator] = []
        self._axes: dict[int, tuple[int, tuple[AxisOf, ...]]] = {}  # by id of variable: node, axes
        self._uses: dict[str, int] = {}

    # Used by the rules

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

    @property
    def last(self) -> int:
        """The number of the newest operator."""
        return len(self._operators) - 1

    def owner(self, variable: Any) -> tuple[int, tuple[AxisOf, ...]] | None:
        """Returns the operator that already has this variable, and the variable's axes."""
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

    # Walking

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

    def walk(self, model: Any, given: Sequence[Value | None]) -> list[Value]:
        """Walks through a functional model with these tensors as inputs; returns its outputs.

        None stands for an input of which nothing is known, such as a mask.
        """
        from ooodist.transfer.graph import keras_layers  # it imports this module

        symbols = zip(map(id, _flat(model.inputs)), given, strict=False)  # masks come last
        values = {symbol: value for symbol, value in symbols if value is not None}
        for call in calls_of_nodes(nodes_of(model)):
            made = keras_layers.apply(self, call, values)
            values |= zip(map(id, call.outputs), made, strict=False)  # none for a mask
        return [values[id(symbol)] for symbol in _flat(model.outputs)]

    def graph(self, model: keras.Model) -> Graph:
        """Returns the graph of what was walked through, with the model's unused weights added."""
        unused = [variable for variable in model.weights if id(variable) not in self._axes]
        if unused:
            self._fixed(self.operator("unused", "Unused", []), unused)
        numbering = channels.Numbering()
        nodes = tuple(
            Node(
                each.name,
                each.op,
                each.inputs,
                tuple(_weight(pending, numbering) for pending in each.weights),
                each.settings,
            )
            for each in self._operators
        )
        return Graph(nodes, numbering.spaces)


def graph_of(model: keras.Model) -> Graph:
    """Returns the graph of a built model.

    Raises:
        UserError: the model is not built, so that its weights are unknown.
    """
    if not model.built:
        raise UserError(
            f"model {model.name} has no weights yet; build it, or call it once with a batch, "
            "before it is given to the zoo"
        )
    walker = Walker(model)
    functional = as_functional(model)
    if functional is None:
        logger.warning(
            "warm start: model %s has a call of its own that takes no symbols; it is taken as the "
            "chain of its layers, which only fit layers of the same shapes",
            model.name,
        )
        before = [Value((), (), walker.operator("input:0", "Input", []))]
        for layer in layers_of(model, include_self=False, recursive=False):
            before = walker.unknown(layer, before, [()])
        return walker.graph(model)
    for value in walker.walk(functional, walker.inputs(_flat(functional.inputs))):
        channels.freeze(value.layout, "output")
    return walker.graph(model)


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
    """Returns new symbols of the shapes that a layer was built with."""
    shapes = shapes_at_build(layer)
    first = next(iter(shapes.values()))
    if isinstance(first, (list, dict)):
        raise TypeError("several inputs")
    return [keras.KerasTensor(tuple(first), dtype=layer.compute_dtype)]


def _fits(axis: AxisOf, size: int) -> bool:
    role, layout = axis
    return not layout or role == "grouped" or channels.size_of(layout) == size


def _weight(pending: _Pending, numbering: channels.Numbering) -> Weight:
    axes = tuple(
        Axis(size, role, numbering.segments(layout))
        for size, (role, layout) in zip(pending.shape, pending.axes, strict=True)
    )
    return Weight(pending.name, pending.kind, axes, pending.trainable)


def _flat(structure: Any) -> list[Any]:
    found: list[Any] = keras.tree.flatten(structure)
    return found
