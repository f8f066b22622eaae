"""The form in which a job file names an object of Keras: by its name, with its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ooodist.errors import UserError
from ooodist.util import yaml_dataclass


@dataclass(frozen=True)
class NamedArguments:
    """A Keras object by name and arguments: ``{name: sgd, momentum: 0.9}``, or just ``sgd``."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def read_named(value: Any, path: str) -> NamedArguments:
    """Reads one. Raises UserError."""
    return NamedArguments(*split_name(value, path, []))


def read_all_named(value: Any, path: str) -> list[NamedArguments]:
    """Reads a list of them. Raises UserError."""
    items = yaml_dataclass.read(list[Any], value, path)
    return [read_named(item, f"{path}[{index}]") for index, item in enumerate(items)]


def write_named(value: NamedArguments | None) -> dict[str, Any] | None:
    """What :func:`read_named` reads."""
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
