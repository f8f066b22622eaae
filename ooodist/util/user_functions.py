"""Imports modules and functions of users, named as ``package.module:function``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ooodist.errors import UserError


def names_a_function(path: str) -> bool:
    """Whether this text has the form ``package.module:function``."""
    module, _, function = path.partition(":")
    return all(part.isidentifier() for part in [*module.split("."), *function.split(".")])


def call_users(path: str, arguments: Mapping[str, Any], key: str, returns: str) -> Any:
    """Calls a user's function, and returns what it returns.

    Args:
        path: ``package.module:function``.
        arguments: passed by keyword.
        key: the key of the job file that names it, for messages.
        returns: what it should return, as "a keras.Model".

    Raises:
        UserError: there is no such function, or it does not take the arguments. What is raised
            inside of the function or of its module is passed on as it is.
    """
    function = find_users(path, key, returns)
    signature = inspect.signature(function)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"{key} {path}{signature} cannot be called with the arguments {dict(arguments)}: "
            f"{error}"
        ) from error
    return function(**arguments)


def find_users(path: str, key: str, returns: str) -> Callable[..., Any]:
    """A user's function; see :func:`call_users`."""
    module_name, _, function_name = path.partition(":")
    target: Any = users_module(module_name, f"{key} {path}")
    for attribute in function_name.split("."):
        if not hasattr(target, attribute):
            raise UserError(
                f"{key} {path}: module {module_name} has no {function_name!r}; correct the name, "
                "or define the function there"
            )
        target = getattr(target, attribute)
    if not callable(target):
        raise UserError(
            f"{key} {path}: {function_name} is a {type(target).__name__}; it must be a function "
            f"that returns {returns}"
        )
    function: Callable[..., Any] = target
    return function


def users_module(name: str, given: str) -> ModuleType:
    """A user's module, imported.

    Args:
        name: ``package.module``.
        given: the option and its value, for messages.

    Raises:
        UserError: there is no such module. What is raised inside of it is passed on as it is.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # an import inside the user's module: the traceback shows where
        raise UserError(
            f"{given}: there is no Python module {error.name!r}; start in the folder that "
            "holds it, add that folder to PYTHONPATH, or correct the name"
        ) from error
