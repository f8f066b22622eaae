"""Keeps AutoGraph out of ooodist, where users call it from a ``tf.function`` of theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., object])


def not_converted(function: F) -> F:
    """Decorates what users call while a step is traced.

    AutoGraph would rewrite it and all that it calls, which takes long, and warn of what it cannot.
    """
    decorated: F = tf.autograph.experimental.do_not_convert(function)
    return decorated
