"""Stops a training run whose numbers are no longer finite, before they are saved to a file.

The loss does not tell. TensorFlow's fused MatMul, BiasAdd and Relu turns NaN into zeros on some
processors, and then the loss looks healthy while weights become NaN. So with several ranks, each
sums up each of its gradients, or what it sends of one in low rank (NaN and infinity survive a sum),
and notes the first that is not finite::

    code   0: all gradients of the call are finite
           n: the n-th gradient is not, in the order of the steps and of the backward pass

A single rank sums up its weights instead, between calls: where gradients have a second reader,
TensorFlow's graph optimizer fuses other ops, and the last bits would no longer be those of plain
Keras. As weights stay NaN, this need not be done after each step, by an op for each: it is done
about once a second, and before anybody saves or evaluates.

The codes of all ranks travel with the logs, in one exchange a call, so every rank knows all codes
and all end with the same message.

Where the loss is scaled (LossScaleOptimizer), gradients overflow now and then, and the optimizer
skips such a step: there only weights are checked.

With ``on_nan: skip`` the step is left out (:mod:`ooodist.step.finiteness.skipping`), and the codes,
of gradients on one rank, too, only serve to say so.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_deferred import has_value
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.graph.units import Gradient
from ooodist.settings.training import OnNan
from ooodist.step.finiteness.overflows import Overflows
from ooodist.step.finiteness.skipping import MOST_IN_A_ROW, Skipping, summed
from ooodist.step.notices import Notices
from ooodist.step.optimizer import optimizers_of

logger = logging.getLogger("ooodist")

SECONDS_BETWEEN_LOOKS = 1.0  # at the weights of a single rank, at least
SHARE_OF_LOOKS = 0.005  # of the time of a training, at most

_WAY_OUT = (
    "lower the learning rate, set clipnorm or global_clipnorm of the optimizer, or look for values "
    "in the data that are not finite"
)


class Checked(NamedTuple):
    """Identifies a gradient that is checked.

    Attributes:
        step: the step within the call, from 0.
        weight: the name of the weight.
    """

    step: int
    weight: str


Codes: TypeAlias = tf.Tensor | Callable[[], np.ndarray]


class GradientSums:
    """Sums up the gradients of one traced call.

    Attributes:
        checked: what is summed up, in the order of the codes.
    """

    def __init__(self) -> None:
        self.checked: list[Checked] = []
        self._sums: list[tf.Tensor] = []

    def add(self, step: int, names: Sequence[str], gradients: Sequence[Gradient]) -> None:
        """Adds the sums of one backward pass, whose gradients are given in the model's order."""
        for name, gradient in reversed(list(zip(names, gradients, strict=True))):
            if gradient is not None:
                self.checked.append(Checked(step, name))
                self._sums.append(summed(gradient))

    def code(self) -> tf.Tensor:
        """This rank's code: a float32 scalar, exact up to 16 million gradients."""
        if not self._sums:
            return tf.zeros([])
        number = len(self._sums)
        codes = tf.range(1.0, number + 1)
        bad = ~tf.math.is_finite(tf.stack(self._sums))
        first = tf.reduce_min(tf.where(bad, codes, math.inf))
        return tf.where(tf.math.is_finite(first), first, 0.0)


class GradientWatch:
    """Reads the codes of each call and raises UserError on all ranks at the first that is not 0.

    On accelerators a call's codes are read when the next call has begun, so that the host need not
    wait for each; in a pipeline, so that the ranks need not wait for each other.

    Args:
        engine: the engine that connects the ranks.
        model: the compiled model.

        on_nan: what follows if a gradient is not finite.

    Attributes:
        on_nan: as given.
        notices: what else ranks tell each other; it travels with the codes.
        step: the steps of the training so far.
    """

    def __init__(self, engine: Engine, model: keras.Model, on_nan: OnNan = "stop") -> None:
        self.on_nan = on_nan
        self.notices = Notices()
        self.step = 0
        self._engine = engine
        self._model = model
        self._waits = bool(tf.config.get_visible_devices("GPU"))
        self._pending: tuple[Codes, Sequence[Checked], int, Any] | None = None
        self._healthy_until = 0  # the last step after which weights were seen to be finite
        self._next_look = 0.0  # at weights, by time.monotonic
        self._loss: Any = None
        self._nan_is_handled = False
        self._skipping: Skipping | None = None
        self._told = 0  # skipped steps that were logged
        self._overflows = Overflows(model)

    @property
    def is_wanted(self) -> bool:
        """Whether gradients must be finite; not so with loss scaling."""
        return self.on_nan != "ignore" and not _scales_loss(self._model)

    @property
    def skipping(self) -> Skipping | None:
        """What leaves out steps whose gradients are not finite; None if nothing does."""
        if self.on_nan != "skip" or not self.is_wanted:
            return None
        if self._skipping is None:
            with tf.init_scope():
                self._skipping = Skipping(self._model)
        return self._skipping

    @property
    def sees_gradients(self) -> bool:
        """Whether gradients are looked at, in each step; otherwise weights are, now and then."""
        return self.is_wanted and (self._engine.size > 1 or self.on_nan == "skip")

    @property
    def num_skipped(self) -> int:
        """How many steps were left out so far."""
        return 0 if self._skipping is None else int(self._skipping.total.numpy())

    def begin(self) -> None:
        """Starts counting at the optimizer's step count, when training begins or resumes."""
        self._pending = None
        self.step = self._healthy_until = int(self._model.optimizer.iterations.numpy())
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        self._overflows.begin()

    def leave_loss_to(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Leaves a loss that is not finite to Keras's TerminateOnNaN, if that is a callback."""
        self._nan_is_handled = any(
            isinstance(callback, keras.callbacks.TerminateOnNaN) for callback in callbacks
        )

    def note(
        self, codes: Codes, checked: Sequence[Checked], num_steps: int, logs: Mapping[str, Any]
    ) -> None:
        """Takes the result of a call, and looks at it now or (on accelerators, and where codes are
        still on their way) after the next call.

        Args:
            codes: the code of each rank, by rank, and then the sums of the notices; or what waits
                for them and returns them.
            checked: what the codes refer to.
            num_steps: the number of steps of the call.
            logs: the logs of the call.
        """
        self._loss = logs.get("loss")
        before, self._pending = self._pending, (codes, checked, self.step, self._loss)
        self.step += num_steps
        if self._engine.rank == 0:
            self._overflows.note(num_steps)
        if not self._waits and not callable(codes):
            self._look_at_pending()
        elif before is not None:
            self._look_at(*before)
        if time.monotonic() >= self._next_look:
            self._look_at_weights()

    def look(self) -> None:
        """Checks the calls so far, waiting for the last one if necessary."""
        self._look_at_pending()
        self._look_at_weights()

    def _look_at_pending(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._look_at(*pending)

    def _look_at_weights(self) -> None:
        """Raises UserError if a single rank trains, and a weight is no longer finite."""
        weights = self._model.trainable_variables
        first, last = self._healthy_until + 1, self.step
        if not self.is_wanted or self.sees_gradients or first > last or not weights:
            return
        began = time.monotonic()
        finite = tf.math.is_finite(tf.stack([summed(weight.value) for weight in weights])).numpy()
        now = time.monotonic()
        self._next_look = now + max(SECONDS_BETWEEN_LOOKS, (now - began) / SHARE_OF_LOOKS)
        if finite.all() or (self._nan_is_handled and _is_not_finite(self._loss)):
            self._healthy_until = last
            return
        name = weights[int(np.argmin(finite))].path
        steps = f"step {last}" if first == last else f"steps {first} to {last}"
        self._end(f"{steps}: weight {name} is no longer finite", self._loss)

    def _look_at(
        self, codes: Codes, checked: Sequence[Checked], steps_before: int, loss: Any
    ) -> None:
        values = np.asarray(codes() if callable(codes) else codes)
        self.notices.learn(values[self._engine.size :])
        found = values[: self._engine.size].astype(int)
        if not found.any() or (self._nan_is_handled and _is_not_finite(loss)):
            return
        first = min(code for code in found if code)
        step, weight = checked[first - 1]
        ranks = [rank for rank, code in enumerate(found) if code == first]
        where = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        number = steps_before + step + 1
        what = f"step {number}: the gradient of {weight} of {where} is not finite"
        if self._skipping is not None and int(self._skipping.in_a_row.numpy()) < MOST_IN_A_ROW:
            self._told += 1
            if self._engine.rank == 0:
                logger.warning("%s: it is left out (on_nan: skip)", what)
            return
        if self._skipping is not None:
            what += f", and the {MOST_IN_A_ROW - 1} before it were left out"
        self._end(what, loss)

    def _end(self, what: str, loss: Any) -> NoReturn:
        shown = "" if loss is None else f" (loss {float(loss):.4g})"
        raise UserError(
            f"{what}{shown}; {_way_out(self._model)}, and go on from the last checkpoint"
        )

    def tell(self) -> None:
        """Logs, at the end of an epoch, how many more steps were left out than :meth:`note` saw.

        Of a call of several steps it sees the first, and none where finite gradients add up to
        infinity.
        """
        unseen = self.num_skipped - self._told
        if unseen > 0 and self._engine.rank == 0:
            logger.warning("%d more steps of this epoch were left out (on_nan: skip)", unseen)
        self._told += max(0, unseen)

    def check_weights(self, loss: Any = None) -> None:
        """Raises UserError, on all ranks, if weights are not finite.

        Args:
            loss: the loss in the logs, None if there is none.
        """
        if self.on_nan == "ignore":
            return
        if self._nan_is_handled and _is_not_finite(loss):
            return
        with self._engine.agreed():  # the ranks of a pipeline have different ones
            check_weights(self._model)


def check_weights(model: keras.Model) -> None:
    """Raises UserError naming the first weight of this rank that :func:`check_weight` refuses."""
    others = [v for v in model.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)]
    for variable in (*model.trainable_variables, *others):
        if has_value(variable):
            check_weight(model, variable, variable.numpy())


def check_weight(model: keras.Model, variable: keras.Variable, value: np.ndarray) -> None:
    """Raises UserError if a weight that is trained is not finite, or another is NaN.

    Args:
        model: the model that has it.
        variable: the weight.
        value: what it is.
    """
    value = np.asarray(value, np.float64)
    # Minus infinity in a custom mask is no mistake.
    bad, what = (
        (~np.isfinite(value), "not finite") if variable.trainable else (np.isnan(value), "NaN")
    )
    if bad.any():
        raise UserError(
            f"weight {variable.path} is {what} at {int(bad.sum())} of {bad.size} places, "
            f"so it is not saved; {_way_out(model)}, and go on from the last checkpoint"
        )


def _scales_loss(model: keras.Model) -> bool:
    return any(
        isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        for optimizer in optimizers_of(model)
    )


def _way_out(model: keras.Model) -> str:
    # Keras looks for overflow before it adds up the rows of an embedding's gradient in float16.
    scale = "give LossScaleOptimizer a smaller initial_scale, " if _scales_loss(model) else ""
    return scale + _WAY_OUT


def _is_not_finite(loss: Any) -> bool:
    return loss is not None and not math.isfinite(float(loss))
