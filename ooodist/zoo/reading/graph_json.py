"""Reads graphs from untrusted JSON; every fault in them raises UserError.

The JSON is what ``yaml_dataclass.plain`` makes of a graph. (``yaml_dataclass.read`` would take half
a second for the thousands of parts of a large graph.)
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ooodist.errors import UserError
from ooodist.transfer.graph.graph import Axis, Graph, Space

MOST_NODES = 20_000
MOST_SIZE = 2**40  # elements along an axis


def read_graph(value: Any) -> Graph:
    """Converts a plain value, as ``yaml_dataclass.plain`` makes it, back to a graph.

    Raises:
        UserError: it is not a graph, or its parts contradict each other.
    """
    try:
        graph: Graph = _reader(Graph)(value)
    except (KeyError, TypeError) as error:
        raise UserError(f"the graph has a part with a wrong or missing key: {error}") from error
    _check_graph(graph)
    return graph


@functools.cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """A function that converts a plain value to the type ``hint``."""
    parts = get_args(hint)
    choices: tuple[Any, ...] = ()
    convert: Callable[[Any], Any] | None = None
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        fields = {name: _reader(each) for name, each in get_type_hints(hint).items()}
        kinds: tuple[Any, ...] = (dict,)
        convert = lambda value: hint(**{k: fields[k](v) for k, v in value.items()})  # noqa: E731
    elif get_origin(hint) is tuple:
        read_item = _reader(parts[0])
        kinds = (list,)
        convert = lambda value: tuple(map(read_item, value))  # noqa: E731
    elif get_origin(hint) is Literal:
        kinds, choices = (str,), parts
    else:
        kinds = tuple(get_origin(each) or each for each in parts or (hint,))

    def read_one(value: Any) -> Any:
        fits = type(value) in kinds and (not choices or value in choices)
        fits &= 0 <= value <= MOST_SIZE if type(value) is int else True
        if not fits or (type(value) is str and not value.isprintable()):  # may be printed
            raise UserError(f"{str(value)[:100]!r} in the graph is not {hint}")
        return convert(value) if convert else value

    return read_one


def _check_graph(graph: Graph) -> None:
    if len(graph.nodes) > MOST_NODES:
        raise UserError(f"it has {len(graph.nodes)} operators; there may be {MOST_NODES}")
    names = set()
    for number, node in enumerate(graph.nodes):
        if node.inputs and max(node.inputs) >= number:
            raise UserError(f"operator {number} reads operator {max(node.inputs)}")
        for setting in (node.settings or {}).values():
            for part in setting if isinstance(setting, list) else [setting]:
                if not isinstance(part, int | float | str):
                    raise UserError(f"operator {number} has {str(part)[:100]!r} as a setting")
        for weight in node.weights:
            if weight.name in names:
                raise UserError(f"two weights have the name {weight.name}")
            names.add(weight.name)
            for axis in weight.axes:
                _check_axis(axis, graph.spaces, weight.name)


def _check_axis(axis: Axis, spaces: tuple[Space, ...], name: str) -> None:
    size = 0
    for segment in axis.segments:
        if segment.space >= len(spaces):
            raise UserError(f"weight {name} runs over space {segment.space} of {len(spaces)}")
        inside = all(map(operator.lt, segment.place, segment.grid))
        if len(segment.place) != len(segment.grid) or not inside:
            raise UserError(f"weight {name} has place {segment.place} in a grid of {segment.grid}")
        size += spaces[segment.space].size * segment.inner
    if axis.segments and axis.role != "grouped" and size != axis.size:
        raise UserError(f"weight {name} has an axis of {axis.size}, but its spaces have {size}")
