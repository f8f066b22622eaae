"""Scales losses so that their mean over the ranks is the loss of the whole batch.

A Keras loss divides by the number of elements that count: with a mask (of an Embedding with
``mask_zero``, of a Masking layer, or by ``ignore_class``) by the number of unmasked tokens, which
differs between ranks. A plain mean of the ranks' losses would give the tokens of a rank that has
few of them more weight. So each rank's loss is multiplied by its share::

    loss of rank r  *  n_r / mean(n_1 .. n_R)          n_r: the unmasked tokens on rank r

whose mean over R ranks is the sum over all tokens divided by their number. A loss with
``reduction="sum"`` is multiplied by R, so that the mean over the ranks is the sum over all.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from ooodist.compat.attributes import replaced_reduction
from ooodist.engines.base import Engine

_MEANS = ("mean", "sum_over_batch_size")


def of_whole_batch(engine: Engine) -> AbstractContextManager[None]:
    """Scales the Keras losses that are computed in a block, in which one step is traced.

    A loss with a mask exchanges one number, which depends only on the mask and so is there before
    the forward pass ends. Other losses stay as they are, bit for bit.
    """
    if engine.size == 1:
        return contextlib.nullcontext()
    number = itertools.count()

    def replacement(plain: Callable[..., Any]) -> Callable[..., Any]:
        def reduce(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str = "sum_over_batch_size",
            dtype: Any = None,
        ) -> Any:
            loss = plain(values, sample_weight, mask, reduction, dtype)
            if reduction == "sum":
                return loss * engine.size
            if mask is None or reduction not in _MEANS:
                return loss
            own = tf.reduce_sum(tf.cast(mask, tf.float32))
            total = engine.sum_in_graph(own, f"masked.{next(number)}")
            return loss * tf.cast(tf.math.divide_no_nan(own * engine.size, total), loss.dtype)

        return reduce

    return replaced_reduction(replacement)
