"""Python objects that ranks exchange. They travel as JSON, so no received data is executed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ooodist import engines
from ooodist.engines.base import Engine
from ooodist.errors import UserError


def broadcast_object(value: Any = None, root: int = 0) -> Any:
    """The object of rank ``root`` on every rank; all ranks call it.

    Args:
        value: null, true, numbers, text, and lists and dictionaries of them, whose keys are text.
            Tuples arrive as lists. The values of other ranks than ``root`` are ignored.
        root: rank that has the object, from 0.

    Raises:
        UserError: on all ranks, if JSON cannot hold the object, or there is no such rank.
    """
    engine = engines.current()
    if root not in range(engine.size):
        raise UserError(f"broadcast_object: root is {root}; it must be 0 to {engine.size - 1}")
    return json.loads(text_of_rank(engine, lambda: _text(value, "broadcast_object"), root))


def text_of_rank(engine: Engine, make: Callable[[], str], root: int = 0) -> str:
    """Makes a text on rank ``root`` and gives it to all ranks, which call it.

    Raises SharedError on all ranks if it fails.
    """
    text = ""
    with engine.agreed():
        if engine.rank == root:
            text = make()
    return engine.broadcast_text(text, root)


def allgather_object(value: Any) -> list[Any]:
    """The objects of all ranks, by rank; all ranks call it.

    Args:
        value: as for :func:`broadcast_object`; each rank may have another.

    Raises:
        UserError: on all ranks, if JSON cannot hold the object of one.
    """
    engine = engines.current()
    text = ""
    with engine.agreed():
        text = _text(value, "allgather_object")
    return [json.loads(received) for received in engine.gather_text(text)]


def _text(value: Any, function: str) -> str:
    """The object as JSON. Raises UserError."""
    try:
        _check(value, function)
    except RecursionError as error:
        raise UserError(f"{function}: the object contains itself, or is too deep") from error
    return json.dumps(value)


def _check(value: Any, function: str) -> None:
    """Raises UserError for what JSON would refuse, or change without a word."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UserError(f"{function}: the key {key!r} is not text; make it text, as by str")
            _check(item, function)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, function)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise UserError(
            f"{function}: a value of type {type(value).__name__} cannot travel; give numbers, "
            "text, and lists and dictionaries of them (a number of NumPy as number.item(), an "
            "array as array.tolist(); tensors by allgather, or by broadcast of a variable)"
        )
