"""The outline of a model, which the matcher reads: operators, their connections, and shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ooodist.transfer.graph.graph import Graph, Node


@dataclass(frozen=True)
class Operator:
    """One operator of a model.

    Attributes:
        op: its kind; only operators of the same kind match.
        inputs: numbers of the operators that it reads, all smaller than its own.
        shapes: the shapes of its weights.
    """

    op: str
    inputs: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()


Outline = tuple[Operator, ...]


def outline_of(graph: Graph) -> Outline:
    """The operators of a model, in its order.

    Operators that read the model's inputs or make its outputs are of kinds of their own: the first
    layer only fits a first one, and the last one a last one.
    """
    return tuple(Operator(_op(node, graph), node.inputs, node.shapes) for node in graph.nodes)


def _op(node: Node, graph: Graph) -> str:
    ends = {
        (axis.role, graph.spaces[segment.space].kind)
        for weight in node.weights
        for axis in weight.axes
        for segment in axis.segments
    }
    first = "<input" if ("in", "input") in ends else ""
    last = ">output" if ("out", "output") in ends else ""
    return f"{node.op}{first}{last}"


def plain_of(outline: Iterable[Operator]) -> list[list[object]]:
    """An outline as lists, for JSON; outline_json.py reads it from those not trusted."""
    return [[each.op, list(each.inputs), [list(s) for s in each.shapes]] for each in outline]


def outline_from(plain: Iterable[Any]) -> Outline:
    """The outline that :func:`plain_of` got."""
    return tuple(
        Operator(op, tuple(inputs), tuple(map(tuple, shapes))) for op, inputs, shapes in plain
    )
