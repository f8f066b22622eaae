"""Adds layers that are described to the graph of a Keras model."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from ooodist.errors import UserError
from ooodist.pipeline.stages import Call
from ooodist.transfer.graph import channels
from ooodist.transfer.graph.channels import Layout
from ooodist.transfer.graph.description import DESCRIBED, LayerDescription, Term
from ooodist.transfer.graph.keras_builder import FIXED, AxisOf, GraphBuilder, Value
from ooodist.transfer.graph.keras_descriptions import DESCRIPTIONS
from ooodist.transfer.graph.keras_kinds import is_channels_last
from ooodist.transfer.graph.keras_plain import unknown_layout
from ooodist.transfer.graph.keras_weighted import multiplied

logger = logging.getLogger("ooodist")


def described(builder: GraphBuilder, layer: Any, given: Sequence[Value], call: Call) -> Layout:
    """Adds a layer by its description; as an unknown one if that does not fit the layer."""
    description = description_of(layer)
    assert description is not None
    inputs = _inputs(layer, description, given, call)
    try:
        variables = weights_of(layer, description)
    except UserError as error:
        logger.warning("warm start: %s; it is taken as a layer of which nothing is known", error)
        return unknown_layout(builder, layer, given, call)
    # With LoRA or quantization, an attribute is not one of the weights.
    is_plain = all(map(builder.has, variables.values())) and len(call.outputs) == 1
    if inputs is None or not is_plain or not is_channels_last(layer):
        return unknown_layout(builder, layer, given, call)
    spaces: dict[str, Layout] = {}
    for name, value in inputs:
        if name in spaces:
            channels.join(spaces[name], value.layout)
        spaces.setdefault(name, value.layout)
    read = frozenset(spaces)
    _add_spaces(spaces, description, variables)
    for name in description.averaged:
        channels.average(spaces.get(name, ()))
    named = {
        "averaged": description.averaged,
        "dots": [a for a in variables if any(term.use == "dot" for term in description.terms[a])],
        "one_plus": [a for a in description.one_plus if a in variables],
        "scaling": [a for a in description.scaling if a in variables],
    }
    node = builder.operator(
        layer.name,
        description.kind or type(layer).__name__,
        [value for _, value in inputs],
        **{key: " ".join(names) for key, names in named.items() if names},
    )
    for attribute, variable in variables.items():
        terms = zip(description.terms[attribute], variable.shape, strict=True)
        axes = [_axis(term, size, spaces, term.name in read) for term, size in terms]
        builder.weight(node, variable, attribute, *axes)
    return spaces.get(description.output) or channels.new(call.outputs[0].shape[-1], "fixed")


def description_of(layer: object) -> LayerDescription | None:
    """The description of a layer; None if there is none.

    That of a base class counts if the layer has its ``call``.
    """
    for each in type(layer).__mro__:
        found = DESCRIBED.get(each) or DESCRIPTIONS.get(f"{each.__module__}.{each.__qualname__}")
        if found is not None:
            own = getattr(type(layer), "call", None)
            return found if own is getattr(each, "call", None) else None
    return None


def weights_of(layer: Any, description: LayerDescription) -> dict[str, Any]:
    """The variables of a layer by their attributes, without those that it does not have.

    Raises:
        UserError: the description does not fit the layer.
    """
    found: dict[str, Any] = {}
    said = f"the description of {type(layer).__name__} does not fit layer {layer.name}"
    sizes: dict[str, int] = {}
    for attribute, terms in description.terms.items():
        try:
            variable = attrgetter(attribute)(layer)
        except AttributeError:
            variable = None
        if variable is None:  # a bias, for example, that is not used
            continue
        if len(variable.shape) != len(terms):
            raise UserError(
                f"{said}: {attribute} has {len(variable.shape)} axes, and {len(terms)} are named"
            )
        found[attribute] = variable
        for term, size in zip(terms, variable.shape, strict=True):
            if not term.repeated and term.name != "_" and sizes.setdefault(term.name, size) != size:
                raise UserError(
                    f"{said}: {term.name} are {size} in {attribute}, and {sizes[term.name]} in "
                    "another weight"
                )
    for attribute, variable in found.items():
        for term, size in zip(description.terms[attribute], variable.shape, strict=True):
            if term.repeated and size % sizes.get(term.name, 1):
                raise UserError(
                    f"{said}: an axis of {attribute} is {size}, which is no multiple of the number "
                    f"of {term.name}"
                )
    ids = {id(variable) for variable in found.values()}
    missing = [each.path for each in layer.weights if id(each) not in ids]
    # Those of LoRA come with attributes that are no weights.
    if description.like is None and missing and ids <= {id(each) for each in layer.weights}:
        raise UserError(
            f"{said}: it has a weight {missing[0]}, which is none of "
            f"{', '.join(description.weights)}"
        )
    return found


def _inputs(
    layer: Any, description: LayerDescription, given: Sequence[Value], call: Call
) -> list[tuple[str, Value]] | None:
    """The inputs with the names of their units; None if there are others."""
    signature = inspect.signature(layer.call)
    names = description.inputs or {next(iter(signature.parameters)): "x"}
    values = dict(zip(map(id, call.inputs), given, strict=True))
    arguments = signature.bind_partial(*call.arguments.args, **call.arguments.kwargs).arguments
    found, known = [], set()
    for argument, symbol in arguments.items():
        if argument in names and id(symbol) in values:
            found.append((names[argument], values[id(symbol)]))
            known.add(id(symbol))
    others = [value for symbol, value in values.items() if symbol not in known]
    is_known = found and not any(value.layout for value in others)  # masks have no units
    return found if is_known else None


def _add_spaces(
    spaces: dict[str, Layout], description: LayerDescription, variables: dict[str, Any]
) -> None:
    """Adds the units that the inputs do not have."""
    for attribute, variable in variables.items():
        for term, size in zip(description.terms[attribute], variable.shape, strict=True):
            if term.name not in spaces and term.name != "_" and not term.repeated:
                kind: channels.Kind = "input" if term.use == "rows" else "units"
                spaces[term.name] = channels.new(size, kind)


def _axis(term: Term, size: int, spaces: dict[str, Layout], is_read: bool) -> AxisOf:
    if term.name not in spaces:  # unknown, or of a weight that the layer does not have
        return FIXED
    layout = spaces[term.name]
    if term.repeated and layout:
        layout = multiplied(layout, size // channels.size_of(layout))
    if term.use == "sum":
        return "in", layout
    return ("unit" if is_read or term.use == "rows" else "out"), layout
