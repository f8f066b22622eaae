"""Replaces attributes of objects of TensorFlow and Keras for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

Reduce = Callable[..., Any]


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Sets attributes of an object, a class or a module in this block; then they are as before.

    What the object had from its class alone, as a method, it has from there again. Keras's and
    TensorFlow's tracking of attributes is bypassed: what is set is not saved with a model.
    """
    kind = type if isinstance(owner, type) else object
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        kind.__setattr__(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                kind.__setattr__(owner, name, before[name])
            else:
                kind.__delattr__(owner, name)


def replaced_reduction(replacement: Callable[[Reduce], Reduce]) -> AbstractContextManager[None]:
    """Replaces the function that reduces all Keras losses in a block.

    ``keras.src.losses.loss.reduce_weighted_values(values, sample_weight, mask, reduction, dtype)``
    (since Keras 3.0) is the one place that has mask and weights together; the public
    ``reduction`` is a string, not a function.

    Args:
        replacement: gets Keras's function and returns one with the same arguments.
    """
    from keras.src.losses import loss

    return replaced(loss, reduce_weighted_values=replacement(loss.reduce_weighted_values))
