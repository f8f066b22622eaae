"""Loss scaling whose updates follow one by one: whether all is finite is agreed on beforehand.

Keras's LossScaleOptimizer looks at all gradients before it updates the first weight, so it waits
for the last exchange. Here each rank looks at its own, before they are exchanged. The verdicts, 4
bytes, overtake the gradients, and each weight is updated as its mean arrives::

    Keras   | F B |-- 3 --||-- 2 --||-- 1 --| finite? U3 U2 U1 | F of the next step
    here    | F B |finite?|
                  |-- 3 --||-- 2 --||-- 1 --|
                           U3       U2       U1  F of the next step

A mean is finite if all of its parts are, and their sum cannot overflow. So the decision is the one
that Keras takes on the means; only gradients whose absolute values add up to more than the largest
float32 on one rank, times the number of ranks, are left out here even if their mean is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat.attributes import replaced
from ooodist.compat.keras_optimizer import as_at_step, averaging_only, uncounted
from ooodist.compat.tensorflow_graph import handle_of
from ooodist.engines.base import Engine
from ooodist.graph.units import Gradient
from ooodist.step.carried import WEIGHT_BY_WEIGHT
from ooodist.step.optimizer import apply, replaced_apply

NAME = "finite"  # of the exchange


def can_be_early(model: keras.Model, engine: Engine) -> bool:
    """Whether a compiled model scales its loss, and its weights can be updated one by one."""
    optimizer = model.optimizer
    if engine.size == 1 or model.run_eagerly:
        return False
    if type(model).train_step is not keras.Model.train_step:
        return False
    if type(optimizer) is not keras.optimizers.LossScaleOptimizer:
        return False
    if not optimizer.built:  # in a branch, no variables can be made
        return False
    inner = optimizer.inner_optimizer
    needs_all = inner.global_clipnorm or inner.gradient_accumulation_steps
    return type(inner) in WEIGHT_BY_WEIGHT and not needs_all


class EarlyVerdict:
    """Traces the updates of a model whose loss is scaled.

    Args:
        model: one of those that :func:`can_be_early`; compiled and built.
        engine: connects the ranks.
    """

    def __init__(self, model: keras.Model, engine: Engine) -> None:
        self._optimizer = model.optimizer
        self._engine = engine
        self._finite: tf.Tensor | None = None
        with tf.init_scope():
            self._count = uncounted(self._optimizer.inner_optimizer)

    def look_at(self, gradients: Sequence[Gradient]) -> None:
        """Tells the others whether this rank's own gradients of a step are finite.

        Args:
            gradients: scaled, of any shape; None counts as finite.
        """
        totals = [_total(gradient) for gradient in gradients if gradient is not None]
        bad = ~tf.math.is_finite(tf.stack(totals) * self._engine.size)
        own = tf.cast(tf.reduce_any(bad), tf.float32)
        self._finite = tf.equal(self._engine.sum_in_graph(own, NAME), 0.0)

    def updating(
        self, groups: Callable[[], Sequence[Sequence[Any]]]
    ) -> AbstractContextManager[None]:
        """Updates, in a block, each group of weights as its gradients arrive, if all are finite.

        Args:
            groups: called when gradients are applied; returns the weights that arrive together.
        """

        def apply_each(plain: Any, gradients: Any, variables: Any) -> None:
            found = {id(handle_of(v)): g for g, v in zip(gradients, variables, strict=True)}
            self._update(groups(), found)
            self._note(plain)

        return replaced_apply([self._optimizer], apply_each)

    def if_finite(self, action: Callable[[], None]) -> None:
        """Does this in a traced step that is not left out."""
        tf.cond(self._finite, action, lambda: None)

    def _update(self, groups: Sequence[Sequence[Any]], gradients: Mapping[int, Gradient]) -> None:
        inner = self._optimizer.inner_optimizer
        self._count.assign(inner.iterations)
        scale = tf.identity(self._optimizer.dynamic_scale.value)

        def update(weights: Sequence[Any]) -> None:
            unscaled = [keras.ops.divide(gradients[id(handle_of(v))], scale) for v in weights]
            with as_at_step(inner, self._count, None), averaging_only(inner, weights):
                apply(inner, unscaled, weights)

        for weights in groups:
            self.if_finite(partial(update, weights))

    def _note(self, plain: Any) -> None:
        """Counts the step, and adapts the scale, as Keras does."""
        optimizer, finite = self._optimizer, self._finite
        inner = optimizer.inner_optimizer

        def count(*_: Any) -> None:
            inner.iterations.assign_add(1)

        with (
            replaced(optimizer, check_finite=lambda _gradients: finite),
            replaced_apply([inner], count),
        ):
            plain([], None)
        self._finite = None


def _total(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """A float32 scalar that is finite if the gradient is, and not too large."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_sum(tf.abs(tf.cast(values, tf.float32)))
