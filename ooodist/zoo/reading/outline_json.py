"""Reads outlines of models from untrusted JSON; every fault in them raises UserError."""

from __future__ import annotations

from typing import Any

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Operator, Outline
from ooodist.zoo.reading.bounded_json import MOST_TEXT
from ooodist.zoo.reading.graph_json import MOST_NODES, MOST_SIZE

MOST_WEIGHTS = 64  # per operator
MOST_AXES = 32  # per weight


def read_outline(value: Any) -> Outline:
    """Converts the result of :func:`ooodist.transfer.graph.operators.plain_of` to an outline.

    Raises:
        UserError: it is no outline; the message names the operator at fault.
    """
    if not isinstance(value, list):
        raise UserError("an outline must be a list of operators")
    check_size(len(value))
    return tuple(_read_operator(number, each) for number, each in enumerate(value))


def check_size(operators: int) -> None:
    """Raises UserError for an outline of too few or too many operators."""
    if not 1 <= operators <= MOST_NODES:
        raise UserError(f"the model has {operators} operators; 1 to {MOST_NODES} are allowed")


def _read_operator(number: int, value: Any) -> Operator:
    match value:
        case [str(op), list(inputs), list(shapes)]:
            pass
        case _:
            raise UserError(f"operator {number} must be a text and two lists, not {_shown(value)}")
    if not 1 <= len(op) <= MOST_TEXT:
        raise UserError(f"operator {number}: its kind must have 1 to {MOST_TEXT} characters")
    for each in inputs:
        if type(each) is not int or not 0 <= each < number:
            raise UserError(
                f"operator {number} reads {_shown(each)}; it must be the number of one before it"
            )
    if len(shapes) > MOST_WEIGHTS:
        raise UserError(
            f"operator {number} has {len(shapes)} weights; at most {MOST_WEIGHTS} are allowed"
        )
    return Operator(op, tuple(inputs), tuple(_read_shape(number, each) for each in shapes))


def _read_shape(number: int, value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or len(value) > MOST_AXES
        or not all(type(size) is int and 1 <= size <= MOST_SIZE for size in value)
    ):
        raise UserError(
            f"operator {number} has a weight of shape {_shown(value)}; it must be a list of "
            f"at most {MOST_AXES} whole numbers from 1 up"
        )
    return tuple(value)


def _shown(value: Any) -> str:
    return repr(value)[:80]
