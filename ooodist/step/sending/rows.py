"""Gradients of embeddings that travel as rows instead of whole tables.

TensorFlow gives the gradient of an embedding as IndexedSlices: a slice for each token of the batch,
and the number of the row that it belongs to. Each rank adds up its slices of one row and sends the
sums, with their numbers in front; all ranks get the sums of all, and add them up themselves::

    rank 0   2: a   7: b   2: c    sends   2: a + c   7: b                      row 2   (a + c) + d
    rank 1   5: e   2: d           sends   5: e       2: d       on all ranks   row 5   e
                                                                                row 7   b

What the optimizer gets is dense, as before: most optimizers take IndexedSlices for another step.
Each rank adds up the same sums in the same order, that of the ranks. With two ranks these are the
bits that the dense exchange gives, as a + b is b + a. With more, a ring adds in an order of its
own, so the last bits may differ from the dense exchange, but never between ranks.

All ranks must send equally many rows, and agree on it without asking in each step. So the batches
must have one shape, which fit knows from the data set's ``element_spec``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.graph.ops import num_bytes
from ooodist.graph.units import Gradient
from ooodist.planner.rows import are_fewer
from ooodist.util.digest import digest

logger = logging.getLogger("ooodist")

NUMBER = tf.int32  # of a row; it travels as the float32 of the same bits


class RowGradients:
    """Decides which gradients of a model travel as rows, alike on all ranks.

    Args:
        engine: exchanges them.
        why_not: why all of them stay dense; empty: they need not.

    Attributes:
        why_not: as given, or because of the engine.
        may_travel: whether some may, with the batches that have begun.
    """

    def __init__(self, engine: Engine, why_not: str = "") -> None:
        self._engine = engine
        self.why_not = why_not
        if not why_not and not engine.kind.gathers:
            self.why_not = f"the engine {engine.name} has no all-gather"
        self._shapes = b""  # a digest of the shapes of all batches; empty if they are not known
        self._seen = False  # whether there was any IndexedSlices
        self._said: set[str] = set()

    @property
    def may_travel(self) -> bool:
        return not self.why_not and bool(self._shapes)

    def begin(self, spec: Any) -> bool:
        """Takes note of the batches that follow; all ranks call it, whatever their arguments.

        Args:
            spec: the ``element_spec`` of the batches; None if it is not known.

        Returns:
            whether steps must be traced anew, as those traced so far may not suit these batches.
        """
        if self._engine.size == 1 or not self._engine.kind.gathers:
            return False
        is_possible = not self.why_not and _is_fixed(spec)
        own = digest(str(spec)) if is_possible else bytes(len(digest("")))
        of_all = self._engine.gather(np.frombuffer(own, np.uint8))
        is_same = any(own) and bool((of_all == of_all[0]).all())
        return self._expect(own if is_same else b"")

    def begin_any(self) -> bool:
        """As :meth:`begin`, for batches of any shapes, unlike on the ranks; asks no other rank."""
        return self._expect(b"")

    def _expect(self, shapes: bytes) -> bool:
        before, self._shapes = self._shapes, shapes
        return self._seen and before != shapes

    def choose(
        self, gradients: Mapping[str, Gradient], alone: Collection[str] | None
    ) -> dict[str, tf.IndexedSlices]:
        """Finds the gradients of a traced step that travel as rows, and logs which.

        Args:
            gradients: by the names of their weights.
            alone: the weights whose exchange a plan leaves alone and whole; None: no plan.
        """
        slices = {n: g for n, g in gradients.items() if isinstance(g, tf.IndexedSlices)}
        self._seen = self._seen or bool(slices)
        chosen: dict[str, tf.IndexedSlices] = {}
        for name, gradient in slices.items():
            dense, rows = num_bytes(gradient), row_bytes(gradient)
            if self.why_not:
                reason = self.why_not
            elif not self._shapes:
                reason = "batches do not all have the same shape, or it is not known beforehand"
            elif alone is not None and name not in alone:
                reason = "the plan exchanges it in a bucket, in parts, narrow or in the next call"
            elif not are_fewer(rows, dense, self._engine.size):
                reason = f"{rows:,} bytes of rows on each rank are no less to send"
            else:
                chosen[name] = gradient
                self._say(f"{name} travels as rows: {rows:,} bytes, instead of {dense:,}")
                continue
            self._say(f"{name} travels as {dense:,} bytes, not as rows: {reason}")
        return chosen

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.info("the gradient of %s", text)


def sum_equal_rows(gradient: Gradient) -> Gradient:
    """Merges the slices of IndexedSlices that belong to one row; other gradients stay as they are.

    The gradient of an embedding has a slice for each use of a row. Keras hands these to the
    optimizer as they are, and whatever is not linear in the gradient (Adam, RMSprop, any clipping)
    then squares the gradient of each use instead of the row's.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(sums, rows, gradient.dense_shape)


def row_bytes(gradient: Gradient) -> int:
    """The bytes that a rank sends if a gradient travels as rows; 0 if it cannot.

    It cannot if it is dense, of another type than float32, or of an unknown number of slices.
    """
    if not isinstance(gradient, tf.IndexedSlices) or gradient.dtype != tf.float32:
        return 0
    sent = num_bytes(gradient.values)
    rows = gradient.shape[0]
    if not sent or rows is None or rows > NUMBER.max or gradient.shape.num_elements() is None:
        return 0
    return int(sent + gradient.values.shape[0] * NUMBER.size)


def pack(gradient: tf.IndexedSlices) -> tf.Tensor:
    """What a rank sends: a row for each slice, of shape (slices, 1 + elements of a row).

    The first column is the number of the row. Slices of one row are added up, as TensorFlow does
    where it makes the gradient dense. The rows that are left over then are zeros for row 0.
    """
    count = gradient.values.shape[0]
    slices = tf.reshape(gradient.values, [count, -1])
    numbers, places = tf.unique(tf.cast(tf.reshape(gradient.indices, [count]), NUMBER))
    sums = tf.math.unsorted_segment_sum(slices, places, count)
    numbers = tf.pad(numbers, [[0, count - tf.size(numbers)]])
    packed = tf.concat([tf.bitcast(numbers, tf.float32)[:, tf.newaxis], sums], axis=1)
    packed.set_shape([count, 1 + slices.shape[1]])
    return packed


def add_up(packed: tf.Tensor, ranks: int, shape: tf.TensorShape) -> tf.Tensor:
    """The dense sum, of this shape, of what ``ranks`` ranks have packed.

    Args:
        packed: float32 of shape (ranks * slices, 1 + elements of a row), by rank.
        ranks: how many there are.
        shape: the shape of the dense gradient.
    """
    numbers = tf.bitcast(packed[:, 0], NUMBER)
    count = packed.shape[0] // ranks
    total = tf.zeros([shape[0], packed.shape[1] - 1], packed.dtype)
    for rank in range(ranks):  # one after the other: no rank has a row twice, so the order is known
        own = slice(rank * count, (rank + 1) * count)
        total = tf.tensor_scatter_nd_add(total, numbers[own, tf.newaxis], packed[own, 1:])
    return tf.reshape(total, shape)


def _is_fixed(spec: Any) -> bool:
    """Whether all tensors of batches with this specification have one known shape."""
    leaves = tf.nest.flatten(spec)
    return all(isinstance(s, tf.TensorSpec) and s.shape.is_fully_defined() for s in leaves)
