"""Checks shared by the settings of several kinds of data; each raises ``UserError``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooodist.errors import UserError

TASKS = ("classification", "language", "regression")


def check_range(key: str, value: float | None, least: int, most: int | None = None) -> None:
    if value is not None and (value < least or (most is not None and value > most)):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        raise UserError(f"data.{key} is {value}: allowed is {allowed}")


def check_fraction(value: float | None, instead: tuple[str, str | None] | None = None) -> None:
    """Checks a fraction; ``instead`` is the key and value that name a separate validation set."""
    if value is not None and not 0 <= value < 1:
        raise UserError(
            f"data.validation_fraction is {value}: allowed is 0 (no validation) up to, "
            "but not including, 1"
        )
    if value is not None and instead is not None and instead[1] is not None:
        raise UserError(
            f"data.validation_fraction is {value} and data.{instead[0]} is {instead[1]}: "
            "give only one of them"
        )


def check_choice(key: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        names = ", ".join("null" if choice is None else str(choice) for choice in allowed)
        raise UserError(f"data.{key} is {value}: allowed are {names}")


def check_shape(key: str, shape: Sequence[int] | None) -> None:
    if shape is not None and any(length < 1 for length in shape):
        raise UserError(f"data.{key} is {list(shape)}: every length must be at least 1")


def check_task(task: str | None, num_classes: int | None) -> None:
    check_choice("task", task, (None, *TASKS))
    check_range("num_classes", num_classes, 2)
    if task == "regression" and num_classes is not None:
        raise UserError(f"data.num_classes is {num_classes}, but regression has no classes")
