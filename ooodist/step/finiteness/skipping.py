"""Leaves out steps whose gradients are not finite (``on_nan: skip``).

::

    F and B of a step | all its gradients, exchanged | all finite?  yes: update
                                                                    no:  all is as before the step

What is looked at is what the optimizer is given, the sum over all ranks. NaN and infinity survive
sums, so all ranks find the same without another exchange. But no weight is updated before the last
gradient is there.

A step that is left out leaves weights, optimizer state, statistics of batch norms, the epoch's
metrics and what low rank keeps as they were, bit for bit. Random numbers go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat.keras_deferred import has_value
from ooodist.graph.units import Gradient
from ooodist.step.optimizer import in_cross_replica_context, optimizers_of, replaced_apply

MOST_IN_A_ROW = 100
"""Steps that may be left out one after the other; then the training is taken to be lost."""


def summed(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """A float32 scalar that is finite if the gradient is."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if values.dtype.size < tf.float32.size:  # sums in 16 bits would overflow
        values = tf.cast(values, tf.float32)
    total = tf.reduce_sum(values)
    if total.dtype == tf.float32:
        return total
    return tf.where(tf.math.is_finite(total), 0.0, float("nan"))


class Skipping:
    """Leaves out steps of a model, and counts them.

    Args:
        model: compiled and built.

    Attributes:
        total: how many steps were left out, an int64 variable.
        in_a_row: how many of the last ones, without one that was not.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self.total = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.in_a_row = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._if_finite: list[Callable[[], None]] = []

    def note(self, finite: tf.Tensor) -> None:
        """Counts a step."""
        one = tf.cast(~finite, tf.int64)
        self.total.assign_add(one)
        self.in_a_row.assign((self.in_a_row + 1) * one)

    def if_finite(self, action: Callable[[], None]) -> None:
        """Traces this at the end of the step, if that is not left out."""
        self._if_finite.append(action)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Makes a step that is traced in this block change nothing if its gradients are not finite.

        Of several optimizers, each leaves out its own update.
        """
        self._if_finite = []
        kept = changed_by_forward(self._model)
        before = [tf.identity(variable.value) for variable in kept]
        verdicts: list[tf.Tensor] = []

        def apply_if_finite(plain: Any, gradients: Any, variables: Any) -> None:
            optimizer = plain.__self__
            if not optimizer.built:  # in a branch, no variables can be made
                optimizer.build(variables)
            finite = all_finite(gradients)
            verdicts.append(finite)
            tf.cond(
                finite,
                lambda: in_cross_replica_context(plain, gradients, variables),
                lambda: None,
            )

        with replaced_apply(optimizers_of(self._model), apply_if_finite):
            yield
        finite = tf.reduce_all(tf.stack([True, *verdicts]))

        def restore() -> None:
            for variable, value in zip(kept, before, strict=True):
                variable.assign(value)

        def change() -> None:
            for action in self._if_finite:
                action()

        tf.cond(finite, change, restore)
        self.note(finite)


def all_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Whether all gradients are finite, a boolean scalar; None counts as finite."""
    sums = [summed(gradient) for gradient in gradients if gradient is not None]
    if not sums:
        return tf.constant(value=True)
    return tf.reduce_all(tf.math.is_finite(tf.stack(sums)))


def changed_by_forward(model: keras.Model) -> list[keras.Variable]:
    """The variables of this rank that a forward pass may make NaN: statistics of layers,
    and metrics."""
    others = (*model.non_trainable_variables, *model.metrics_variables)
    found = {id(v): v for v in others if keras.backend.is_float_dtype(v.dtype) and has_value(v)}
    return list(found.values())
