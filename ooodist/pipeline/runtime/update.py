"""Applies the optimizer to the weights of one rank, as if the rank had all weights.

Where an optimizer looks at all gradients together, ranks agree: on the norm that
``global_clipnorm`` limits, and on whether all are finite where the loss is scaled. Where it is not
scaled, gradients must be finite: see ``step/finiteness/finite.py``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import keras
import numpy as np
import tensorflow as tf
from keras.optimizers import LossScaleOptimizer, Optimizer

from ooodist.compat.attributes import replaced
from ooodist.engines.arrays import ArrayExchange
from ooodist.errors import UserError
from ooodist.step.finiteness.finite import GradientSums
from ooodist.step.optimizer import needs_all_gradients, without_scaling
from ooodist.step.update_order import one_after_the_other


class Update:
    """Applies gradients to the weights of a rank.

    Args:
        optimizer: the model's; built for all weights.
        weights: the weights that this rank updates, by name.
        counted: for each, whether this rank counts it in the norm; a weight that several ranks
            update is counted on one of them.
        others: the ranks that update the other weights, and this one.
        updating: context entered around the update while it is traced; None for none.
        share: called at the end: gives new values to ranks that have them from this one, or this
            one from them; None where each rank updates all of its weights.
        skips: whether updates whose gradients are not finite are left out, on all ranks.

    Attributes:
        needs_all: whether the ranks must agree before they update.
        was_skipped: whether the last update was left out because of ``skips``.
        not_finite: name of the first weight, in the order of the backward pass, whose gradient was
            not finite in the last step; None if there is none, or the loss is scaled.

    Raises:
        UserError: the optimizer accumulates gradients itself.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        weights: Mapping[str, keras.Variable],
        counted: Sequence[bool],
        others: ArrayExchange,
        updating: Callable[[], AbstractContextManager[None]] | None = None,
        share: Callable[[], None] | None = None,
        *,
        skips: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._inner = without_scaling(optimizer)
        if self._inner.gradient_accumulation_steps:
            raise UserError(
                "optimizer.gradient_accumulation_steps is "
                f"{self._inner.gradient_accumulation_steps}, but the micro-batches of a pipeline "
                "accumulate; leave it out, and raise batch and parallel.microbatches"
            )
        self._names, self._variables = list(weights), list(weights.values())
        self._counted = list(counted)
        self._others = others
        self._share = share
        self._updating = updating or contextlib.nullcontext
        self._skips = skips and self._inner is optimizer
        self.was_skipped = False
        self.needs_all = needs_all_gradients(optimizer, skips=skips)
        self.not_finite: str | None = None
        self._sums = GradientSums()
        self._look = tf.function(self._look_at, autograph=False)
        self._apply = tf.function(self._apply_to, autograph=False)

    @property
    def loss_scale(self) -> float:
        """The factor on the loss, and so on all gradients."""
        if isinstance(self._optimizer, LossScaleOptimizer):
            return float(self._optimizer.dynamic_scale.numpy())
        return 1.0

    def __call__(self, gradients: Sequence[tf.Tensor]) -> None:
        """Updates the weights; all ranks call it together."""
        factor, finite = tf.ones([]), tf.constant(value=True)
        if self.needs_all:
            factor, finite = self._of_all(gradients)
            self.was_skipped = self._skips and not bool(finite)
        code = int(self._apply(list(gradients), factor, finite))
        self.not_finite = self._sums.checked[code - 1].weight if code else None
        if self._share is not None:
            self._share()

    def _of_all(self, gradients: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """The factor that clips the global norm, and whether the gradients are finite."""
        mine = np.array([float(value) for value in self._look(list(gradients))])
        squares, not_finite = self._others.all_reduce(mine, "sum")
        factor = 1.0
        limit = self._inner.global_clipnorm
        if limit and not not_finite:
            norm = np.sqrt(squares) / self.loss_scale
            factor = limit * min(1 / norm, 1 / limit) if norm else 1.0
        return tf.constant(factor, tf.float32), tf.constant(value=not not_finite)

    def _look_at(self, gradients: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        squares: list[tf.Tensor] = []
        for gradient, counts in zip(gradients, self._counted, strict=True):
            if counts:
                with tf.control_dependencies(squares[-1:]):  # one copy in float64 at a time
                    squares.append(tf.reduce_sum(tf.square(tf.cast(gradient, tf.float64))))
        # Each element, as Keras: with a large scale, a sum may overflow where no element does.
        strange = [tf.reduce_any(~tf.math.is_finite(g)) for g in gradients]
        total = tf.add_n(squares) if squares else tf.zeros([], tf.float64)
        any_strange = tf.reduce_any(tf.stack(strange)) if strange else tf.constant(value=False)
        return total, tf.cast(any_strange, tf.float64)

    def _apply_to(
        self, gradients: Sequence[tf.Tensor], factor: tf.Tensor, finite: tf.Tensor
    ) -> tf.Tensor:
        """Applies gradients; returns the code of a non-finite one or 0, see ``finite.py``."""
        self._sums = GradientSums()
        if self._inner is self._optimizer:
            self._sums.add(0, self._names, gradients)
        code = self._sums.code()
        if self._inner.global_clipnorm:
            gradients = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
        with self._agreed(finite), self._updating(), one_after_the_other(self._inner):
            if self._skips and self._variables:
                update = functools.partial(self._optimizer.apply, gradients, self._variables)
                tf.cond(finite, update, lambda: None)
            else:
                self._optimizer.apply(gradients, self._variables)
        if not self._variables:  # Keras does not count a step without gradients
            self._optimizer.iterations.assign_add(tf.cast(finite, self._optimizer.iterations.dtype))
        return code

    @contextlib.contextmanager
    def _agreed(self, finite: tf.Tensor) -> Iterator[None]:
        """Makes the optimizer use what all ranks have agreed on."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(self._inner, global_clipnorm=None))
            if self._inner is not self._optimizer:
                stack.enter_context(replaced(self._optimizer, check_finite=lambda _: finite))
            yield
