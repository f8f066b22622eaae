"""The form in which a job file names an object of Keras: by its name, with its arguments."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ooodist.errors import UserError
from ooodist.util import yaml_dataclass


@dataclass(frozen=True)
class NamedArguments:
    """A Keras object by name and arguments: ``{name: sgd, momentum: 0.9}``, or just ``sgd``."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def checked_by(
    function: str, *, is_list: bool = False, optional: bool = False
) -> Callable[[Any, str], Any]:
    """Makes a reader of one, or of a list of them, that may be null if it is ``optional``.

    Args:
        function: checks each, as ``keras_objects.check_loss``: of a module of this package that
            imports Keras, and is itself imported when there is something to check.
    """
    module, _, name = function.partition(".")

    def check(named: NamedArguments, path: str) -> Any:
        return getattr(importlib.import_module(f"ooodist.config.{module}"), name)(named, path)

    def read(value: Any, path: str) -> Any:
        if value is None and optional:
            return None
        if not is_list:
            return check(NamedArguments(*split_name(value, path, [])), path)
        items = enumerate(read_all_named(value, path))
        return tuple(check(named, f"{path}[{index}]") for index, named in items)

    return read


def read_all_named(value: Any, path: str) -> list[NamedArguments]:
    """Reads a list of them. Raises UserError."""
    items = yaml_dataclass.read(list[Any], value, path)
    return [
        NamedArguments(*split_name(item, f"{path}[{index}]", []))
        for index, item in enumerate(items)
    ]


def write_named(value: NamedArguments | None) -> dict[str, Any] | None:
    """What :func:`checked_by` reads."""
    return None if value is None else {"name": value.name, **yaml_dataclass.plain(value.arguments)}


def write_all_named(value: Sequence[NamedArguments] | None) -> list[Any] | None:
    """What :func:`read_all_named` reads."""
    return None if value is None else [write_named(each) for each in value]


def split_name(value: Any, path: str, known: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Splits ``{name: NAME, …}``, or just ``NAME``, into the name and the other settings."""
    given = yaml_dataclass.read(str | dict[str, Any], value, path)
    settings = {"name": given} if isinstance(given, str) else dict(given)
    if "name" not in settings:
        allowed = f": one of {', '.join(known)}" if known else ""
        raise UserError(f"{path}.name is missing; give the name{allowed}")
    return yaml_dataclass.read(str, settings.pop("name"), f"{path}.name"), settings
