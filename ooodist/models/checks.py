"""Range checks of model settings: each raises a UserError that names the YAML key."""

from collections.abc import Sequence

import keras

from ooodist.errors import UserError


def at_least(key: str, value: float | None, minimum: float) -> None:
    """Raises UserError if ``model.<key>`` is set (not None) and smaller than ``minimum``."""
    if value is not None and value < minimum:
        raise UserError(f"model.{key} is {value}; it must be {minimum} or more.")


def dropout_rate(key: str, value: float) -> None:
    """Raises UserError if ``value`` of ``model.<key>`` is not in [0, 1)."""
    if not 0 <= value < 1:
        raise UserError(
            f"model.{key} is {value}; it must be 0 (no dropout) or more, and less than 1."
        )


def one_of(key: str, value: object, allowed: Sequence[object]) -> None:
    """Raises UserError if ``value`` of ``model.<key>`` is not one of ``allowed``."""
    if value not in allowed:
        raise UserError(
            f"model.{key} is {value!r}; it must be one of {', '.join(map(str, allowed))}."
        )


def activation(key: str, value: str) -> None:
    """Raises UserError if ``value`` of ``model.<key>`` is not a Keras activation."""
    try:
        keras.activations.get(value)
    except ValueError:
        raise UserError(
            f"model.{key} is {value!r}, which is no Keras activation; take for example relu, "
            "gelu, tanh, silu or linear (keras.activations lists all)."
        ) from None
