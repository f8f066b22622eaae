"""Checks and makes the callbacks of a job file: Keras's by name, or those of a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import keras

from ooodist.config.keras_catalogue import Catalogue, catalogue, check_arguments, find, make
from ooodist.config.keras_catalogue import snake_case as plain_snake_case
from ooodist.config.named_arguments import NamedArguments
from ooodist.errors import UserError
from ooodist.util.user_functions import call_users, names_a_function

# Those that jobs have keys for, or that take functions, and what to give in their place.
_INSTEAD = {
    "BackupAndRestore": "the key checkpoint, and --resume",
    "EarlyStopping": "the key early_stopping, whose state is kept in checkpoints",
    "LambdaCallback": "your own package.module:function",
    "LearningRateScheduler": "optimizer.learning_rate with a schedule",
}
_OF_FIT = ("CallbackList", "History", "ProgbarLogger")  # which makes them itself


def snake_case(name: str) -> str:
    """As for other objects of Keras; the last word of ``TerminateOnNaN`` is one."""
    return plain_snake_case(name.replace("NaN", "Nan"))


CALLBACKS: Catalogue = catalogue(
    keras.callbacks, keras.callbacks.Callback, snake_case, *_INSTEAD, *_OF_FIT
)


def check_callback(named: NamedArguments, path: str) -> NamedArguments:
    """Checks the callback; returns it by its canonical name. Raises UserError for a wrong key."""
    if ":" in named.name:
        if not names_a_function(named.name):
            raise UserError(f"{path}.name is {named.name}; it must be package.module:function")
        return named
    for name, instead in _INSTEAD.items():
        if named.name.replace("_", "").lower() == name.lower():
            raise UserError(f"{path}.name is {named.name}; in a job file, take {instead}")
    name = find(named.name, CALLBACKS, path, "callback")
    return NamedArguments(name, check_arguments(CALLBACKS[name], named.arguments, path, name))


def make_callbacks(callbacks: Sequence[NamedArguments]) -> list[keras.callbacks.Callback]:
    """Makes new callbacks.

    Raises:
        UserError: Keras refuses an argument, or a function returns anything but callbacks.
    """
    made: list[keras.callbacks.Callback] = []
    for index, named in enumerate(callbacks):
        path = f"callbacks[{index}]"
        if ":" in named.name:
            made += _of_function(named, path)
        else:
            made.append(make(CALLBACKS[named.name], named.arguments, path))
    return made


def monitored(callbacks: Sequence[NamedArguments]) -> dict[str, str]:
    """What Keras's callbacks monitor, by key.

    Empty if a user's function makes callbacks, which may log anything.
    """
    found: dict[str, str] = {}
    for index, named in enumerate(callbacks):
        if ":" in named.name:
            return {}
        parameter = inspect.signature(CALLBACKS[named.name]).parameters.get("monitor")
        if parameter is not None:
            path = f"callbacks[{index}].monitor"
            found[path] = named.arguments.get("monitor", parameter.default)
    return found


def _of_function(named: NamedArguments, path: str) -> list[keras.callbacks.Callback]:
    returns = "a keras.callbacks.Callback, or a list of them"
    given: Any = call_users(named.name, named.arguments, path, returns)
    made = list(given) if isinstance(given, list | tuple) else [given]
    for each in made:
        if not isinstance(each, keras.callbacks.Callback):
            raise UserError(
                f"{path}: {named.name} returned {type(given).__name__} {str(given)[:80]}; it must "
                f"return {returns}"
            )
    return made
