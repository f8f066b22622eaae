"""Values of variables that ranks send to each other between steps, small ones together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.step.sharding.grouping import divide

TOGETHER_BYTES = 4 << 20  # engines hold several copies of what they send and receive


class Move(NamedTuple):
    """A value that a rank sends to others.

    Attributes:
        source: the rank that sends it.
        receivers: the ranks that take it.
        shape: that of the value.
        dtype: that of the value.
        read: returns the value, on the source.
        take: is given the value, on the receivers.
    """

    source: int
    receivers: set[int]
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], Any]
    take: Callable[[np.ndarray], None]

    @property
    def num_bytes(self) -> int:
        """The bytes that are sent."""
        return math.prod(self.shape) * self.dtype.itemsize


def of_whole(
    variable: keras.Variable, source: int, receivers: set[int], take: Callable[[np.ndarray], None]
) -> Move:
    """Sends the value of a variable that a rank has."""
    dtype = np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
    return Move(source, receivers, tuple(variable.shape), dtype, variable.numpy, take)


def send(engine: Engine, moves: Iterable[Move]) -> None:
    """Sends values from rank to rank; all ranks call it with the same moves."""
    rank = engine.rank
    needed = [move for move in moves if move.receivers]
    for group in divide(needed, lambda m: m.source, lambda m: m.num_bytes, TOGETHER_BYTES):
        values = [
            np.asarray(move.read()) if rank == move.source else np.zeros(move.shape, move.dtype)
            for move in group
        ]
        if any(move.receivers - {move.source} for move in group):
            values = engine.broadcast(values, group[0].source)
        for move, value in zip(group, values, strict=True):
            if rank in move.receivers:
                move.take(value)
