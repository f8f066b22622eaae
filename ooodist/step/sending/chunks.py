"""Large gradients travel in chunks, which are exchanged one by one; small ones share a bucket."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import tensorflow as tf

from ooodist.errors import UserError
from ooodist.planner.data_parallel.plan import ALIGNMENT, PlannedExchange, split_evenly


def split(
    gradient: tf.Tensor, exchange: PlannedExchange, *, columns: bool = False
) -> list[tf.Tensor]:
    """All chunks of a gradient, flat. Raises UserError if it has too few elements.

    Args:
        gradient: of any shape; with ``columns`` a matrix, whose chunks are columns of it.
        exchange: of one of the chunks.
        columns: whether each chunk has a part of each row.
    """
    try:
        count = gradient.shape[1] if columns else gradient.shape.num_elements()
        sizes = split_evenly(count, gradient.dtype.size, exchange.parts)
    except ValueError as error:
        raise UserError(
            f"the plan splits {exchange.weights[0]} into {exchange.parts} parts, but it has "
            f"{count} elements ({ALIGNMENT} bytes a part at least); give it fewer parts"
        ) from error
    # Slices, not tf.split: TensorFlow's optimizer hoists what follows all parts of a split, and
    # so makes the first part wait for what only the last has to wait for.
    begins = itertools.accumulate(sizes[:-1], initial=0)
    places = list(zip(begins, sizes, strict=True))
    if columns:
        return [tf.slice(gradient, [0, begin], [-1, size]) for begin, size in places]
    flat = tf.reshape(gradient, [-1])
    return [tf.slice(flat, [begin], [size]) for begin, size in places]


def join(chunks: Sequence[tf.Tensor], shape: tf.TensorShape) -> tf.Tensor:
    """The gradient of which these are all chunks."""
    return tf.reshape(tf.concat(chunks, axis=0), shape)


def flatten(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Tensors of one dtype as a flat one, as they travel in a bucket."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def unflatten(flat: tf.Tensor, shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """The tensors of these shapes of which :func:`flatten` has made one."""
    parts = tf.split(flat, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
