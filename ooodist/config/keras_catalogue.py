"""Finds Keras's classes by the names that job files use, checks their arguments, makes objects."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ooodist.errors import UserError
from ooodist.util import yaml_dataclass
from ooodist.util.yaml_dataclass import did_you_mean

Catalogue = Mapping[str, type]

_MAY_BE_NEGATIVE = ("learning_rate_power",)


def snake_case(name: str) -> str:
    """Converts to snake case: ``CosineDecay`` -> ``cosine_decay``, ``R2Score`` -> ``r2_score``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def catalogue(module: ModuleType, base: type, spell: Callable[[str], str], *wrappers: str) -> Any:
    """The public subclasses of ``base`` by the names that job files use."""
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {
        spell(name): cls
        for name, cls in sorted(classes.items())
        if issubclass(cls, base) and cls is not base and name not in wrappers
    }


def find(name: Any, catalogue: Catalogue, path: str, what: str, key: str = "name") -> str:
    """The canonical spelling of a name; ``RMSProp`` and ``AdamW`` are found as well."""
    if isinstance(name, str):
        for known in catalogue:
            if known.replace("_", "") == name.replace("_", "").lower():
                return known
    raise UserError(
        f"{path}.{key} is {name}{did_you_mean(name, list(catalogue))}; "
        f"a Keras {what} is one of {', '.join(catalogue)}"
    )


def check_arguments(
    cls: type, arguments: Mapping[str, Any], path: str, name: str, numbers_only: bool = False
) -> dict[str, Any]:
    """Checks the arguments against the constructor's signature and defaults, and returns them."""
    parameters = {
        key: parameter
        for key, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and key != "name"
    }
    yaml_dataclass.check_keys(arguments, parameters, path, name)
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise UserError(f"{path}.{key} is missing; {name} needs it")
    checked = {
        key: yaml_dataclass.read(
            _hint(parameters[key].default, numbers_only), value, f"{path}.{key}"
        )
        for key, value in arguments.items()
    }
    if numbers_only:
        for key in checked.keys() - _MAY_BE_NEGATIVE:
            check_not_negative(checked[key], f"{path}.{key}")
    return checked


def check_not_negative(value: Any, path: str) -> None:
    """Raises UserError for a number below zero, which Keras would accept silently."""
    at_least_zero = yaml_dataclass.Range(0)
    if isinstance(value, int | float) and not at_least_zero.contains(value):
        raise UserError(f"{path} is {value}; it must be {at_least_zero}")


def _hint(default: Any, numbers_only: bool) -> Any:
    """An argument's type, inferred from its default, as Keras has no type hints."""
    if default is None or default is inspect.Parameter.empty:
        without_text = int | float | list[Any] | None
        return without_text if numbers_only else without_text | str | bool
    if type(default) is int:
        return int | float
    return type(default) if type(default) in (bool, float, str) else Any


def make(cls: type, arguments: Mapping[str, Any], path: str) -> Any:
    try:
        return cls(**arguments)
    except (ValueError, TypeError) as error:
        given = yaml_dataclass.dump(dict(arguments)).strip().replace("\n", ", ")
        raise UserError(f"{path}: Keras refuses {cls.__name__} with {given}: {error}") from error
