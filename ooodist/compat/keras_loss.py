"""How Keras makes one number of the losses of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Reduce = Callable[..., Any]


@contextlib.contextmanager
def replaced_reduction(replacement: Callable[[Reduce], Reduce]) -> Iterator[None]:
    """In this block all Keras losses are reduced by another function.

    ``keras.src.losses.loss.reduce_weighted_values(values, sample_weight, mask, reduction, dtype)``
    (since Keras 3.0) is the one place that knows mask and weights together; a public
    ``reduction`` is a word, not a function.

    Args:
        replacement: is given Keras's function, and gives the other one, of the same arguments.
    """
    from keras.src.losses import loss

    plain = loss.reduce_weighted_values
    loss.reduce_weighted_values = replacement(plain)
    try:
        yield
    finally:
        loss.reduce_weighted_values = plain
