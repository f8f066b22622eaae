"""Replaces the function by which Keras reduces the losses of a batch to one number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Reduce = Callable[..., Any]


@contextlib.contextmanager
def replaced_reduction(replacement: Callable[[Reduce], Reduce]) -> Iterator[None]:
    """Replaces the function that reduces all Keras losses in this block.

    ``keras.src.losses.loss.reduce_weighted_values(values, sample_weight, mask, reduction, dtype)``
    (since Keras 3.0) is the one place that has mask and weights together; the public
    ``reduction`` is a string, not a function.

    Args:
        replacement: gets Keras's function and returns one with the same arguments.
    """
    from keras.src.losses import loss

    plain = loss.reduce_weighted_values
    loss.reduce_weighted_values = replacement(plain)
    try:
        yield
    finally:
        loss.reduce_weighted_values = plain
