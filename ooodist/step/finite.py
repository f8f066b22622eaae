"""Stops a training whose numbers are no longer finite, before a file can keep what is left of it.

The loss does not tell. TensorFlow's fused MatMul, BiasAdd and Relu makes zeros of NaN on some
processors, and then the loss looks healthy while weights become NaN. So each of several ranks adds
up each of its gradients (NaN and infinity survive a sum) and notes the first that is not finite::

    code   0: all gradients of the call are finite
           n: the n-th of them is not, in the order of the steps and of the backward pass

One rank adds up its weights instead, once a call, behind the last update: where gradients have a
second reader, TensorFlow's optimizer of graphs joins other ops, and the last bits would no longer
be those of plain Keras.

The codes of all ranks travel with the logs, in one exchange a call. So every rank knows the codes
of all, and all end with the same message.

Where the loss is scaled (LossScaleOptimizer), gradients overflow now and then, and the optimizer
leaves such a step out: nothing is checked there but weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.graph.units import Gradient
from ooodist.step.optimizer import optimizers_of

_WAY_OUT = (
    "lower the learning rate, set clipnorm or global_clipnorm of the optimizer, or look for values "
    "in the data that are not finite"
)


class Checked(NamedTuple):
    """A gradient, or with one rank a weight, that is checked.

    Attributes:
        step: of the call, from 0.
        weight: the name of the weight.
    """

    step: int
    weight: str


class GradientSums:
    """The sums of the gradients, or of the weights, of one traced call.

    Attributes:
        checked: what is added up, in the order of the codes.
    """

    def __init__(self) -> None:
        self.checked: list[Checked] = []
        self._sums: list[tf.Tensor] = []

    def add(self, step: int, names: Sequence[str], gradients: Sequence[Gradient]) -> None:
        """Adds up those of one backward pass of a step, which are in the order of the model."""
        for name, gradient in reversed(list(zip(names, gradients, strict=True))):
            if gradient is not None:
                self.checked.append(Checked(step, name))
                self._sums.append(_sum(gradient))

    def code(self) -> tf.Tensor:
        """That of this rank: a scalar of float32, which has room for 16 million gradients."""
        if not self._sums:
            return tf.zeros([])
        number = len(self._sums)
        codes = tf.range(1.0, number + 1)
        bad = ~tf.math.is_finite(tf.stack(self._sums))
        first = tf.reduce_min(tf.where(bad, codes, math.inf))
        return tf.where(tf.math.is_finite(first), first, 0.0)


def _sum(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """A float32 that is finite if the gradient is."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if values.dtype.size < tf.float32.size:  # sums of short floats overflow
        values = tf.cast(values, tf.float32)
    total = tf.reduce_sum(values)
    if total.dtype == tf.float32:
        return total
    return tf.where(tf.math.is_finite(total), 0.0, math.nan)


class GradientWatch:
    """Reads the codes of calls and raises UserError on all ranks at the first that is not 0.

    On accelerators a call's codes are read when the next one has begun, so that the host need not
    wait for each.

    Args:
        engine: of the ranks whose codes arrive.
        model: compiled.
    """

    def __init__(self, engine: Engine, model: keras.Model) -> None:
        self._engine = engine
        self._model = model
        self._waits = bool(tf.config.get_visible_devices("GPU"))
        self._pending: tuple[tf.Tensor, Sequence[Checked], int, Any] | None = None
        self._step = 0
        self._nan_is_handled = False

    @property
    def is_wanted(self) -> bool:
        """Whether gradients must be finite."""
        return not any(
            isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
            for optimizer in optimizers_of(self._model)
        )

    def begin(self) -> None:
        """A training begins, or goes on, at the optimizer's count of steps."""
        self._pending = None
        self._step = int(self._model.optimizer.iterations.numpy())

    def leave_loss_to(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """With Keras' TerminateOnNaN among them, a loss that is not finite is left to it."""
        self._nan_is_handled = any(
            isinstance(callback, keras.callbacks.TerminateOnNaN) for callback in callbacks
        )

    def note(
        self, codes: tf.Tensor, checked: Sequence[Checked], num_steps: int, logs: Mapping[str, Any]
    ) -> None:
        """Takes what a call has found.

        Args:
            codes: of all ranks, by rank.
            checked: what they mean.
            num_steps: of the call.
            logs: of the call.
        """
        before, self._pending = self._pending, (codes, checked, self._step, logs.get("loss"))
        self._step += num_steps
        if not self._waits:
            self.look()
        elif before is not None:
            self._look_at(*before)

    def look(self) -> None:
        """Looks at the last call, which it may have to wait for."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._look_at(*pending)

    def _look_at(
        self, codes: tf.Tensor, checked: Sequence[Checked], steps_before: int, loss: Any
    ) -> None:
        found = np.asarray(codes).astype(int)
        if not found.any() or (self._nan_is_handled and _is_not_finite(loss)):
            return
        first = min(code for code in found if code)
        step, weight = checked[first - 1]
        last = steps_before + step + 1
        if self._engine.size > 1:
            ranks = [rank for rank, code in enumerate(found) if code == first]
            where = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
            what = f"step {last}: the gradient of {weight} of {where} is not finite"
        else:
            steps = f"step {last}" if not step else f"steps {steps_before + 1} to {last}"
            what = f"{steps}: weight {weight} is no longer finite"
        loss = "" if loss is None else f" (loss {float(loss):.4g})"
        raise UserError(f"{what}{loss}; {_WAY_OUT}, and go on from the last checkpoint")

    def check_weights(self, loss: Any = None) -> None:
        """Raises UserError where weights are not finite; they must be alike on all ranks.

        Args:
            loss: in the logs.
        """
        if self._nan_is_handled and _is_not_finite(loss):
            return
        check_weights(self._model)


def check_weights(model: keras.Model) -> None:
    """Raises UserError, naming the first, if a trained weight is not finite or another is NaN."""
    trained = model.trainable_variables
    others = [v for v in model.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)]
    for variables, is_bad, what in (
        (trained, lambda value: ~np.isfinite(value), "not finite"),
        (others, np.isnan, "NaN"),  # minus infinity in a mask of one's own is no mistake
    ):
        for variable in variables:
            bad = is_bad(np.asarray(variable.numpy(), np.float64))
            if bad.any():
                raise UserError(
                    f"weight {variable.path} is {what} at {int(bad.sum())} of {bad.size} places, "
                    f"so it is not saved; {_WAY_OUT}, and go on from the last checkpoint"
                )


def _is_not_finite(loss: Any) -> bool:
    return loss is not None and not math.isfinite(float(loss))
