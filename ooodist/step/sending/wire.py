"""Gradients that travel in 16 bits, with error feedback.

Each rank adds to its gradient what earlier steps have lost, and keeps what rounding loses now::

    wanted    gradient / ranks + residual
    sent      wanted, rounded to 16 bits             summed over the ranks: the mean
    residual  wanted - sent                          added in the next step

So nothing is lost, only put off; gradients too small for float16 add up until they are not. The
residuals are state of a rank, which nothing but its steps changes: an average of the ranks' would
round otherwise from then on. So a checkpoint has those of each rank, and no other exchange has any.
With another number of ranks, a resumed job adds some up: their sum over the ranks is what counts.

No sum becomes infinite: a value that is sent is kept within 2^15 / n in float16 (2^127 / n in
bfloat16), with the number of ranks rounded up to a power of two as n, and the rest stays in the
residual, or is lost without error feedback. What is not finite stays so, for whoever looks for it.

Source: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs", Interspeech 2014; Karimireddy et al., "Error feedback fixes
SignSGD and other gradient compression schemes", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.step.rank_state import RESIDUAL, RankState

WIRES = ("float16", "bfloat16")
_LARGEST_EXPONENT = {tf.float16: 15, tf.bfloat16: 127}


def check_wire(engine: Engine, wire: str) -> None:
    """Raises UserError unless the engine can sum gradients in this dtype."""
    if wire in WIRES and wire not in engine.wires:
        raise UserError(
            f"exchange.wire is {wire}, which engine {engine.name} cannot sum; give "
            f"{' or '.join(engine.wires)}, or leave wire out"
        )
    if wire not in WIRES:
        raise UserError(
            f"exchange.wire is {wire!r}; it must be one of {', '.join(WIRES)}, or float32: then "
            "gradients travel as they are"
        )


class ErrorFeedback:
    """What the gradients of a model have lost on this rank, weight by weight.

    Args:
        loss_scale: returns the scale of the loss, by which the gradients are multiplied; None if it
            is not scaled. Residuals are kept unscaled, as the scale changes.
        state: keeps it; None: of its own.
    """

    def __init__(
        self,
        loss_scale: Callable[[], tf.Tensor | None] = lambda: None,
        state: RankState | None = None,
    ) -> None:
        self._state = RankState({RESIDUAL}) if state is None else state
        self._loss_scale = loss_scale

    def added(self, weight: str, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient with what the weight's earlier gradients have lost."""
        residual = tf.convert_to_tensor(self.residual(weight, gradient))
        scale = self._loss_scale()
        return gradient + (residual if scale is None else residual * tf.cast(scale, residual.dtype))

    def keep(self, weight: str, lost: tf.Tensor) -> None:
        """Keeps what is lost now. Where that is not finite, what was lost before stays."""
        residual = self.residual(weight, lost)
        lost = self.unscaled(lost)
        residual.assign(tf.where(tf.math.is_finite(lost), lost, residual))

    def unscaled(self, tensor: tf.Tensor) -> tf.Tensor:
        """A gradient, or what was made of it, without the scale of the loss."""
        scale = self._loss_scale()
        return tensor if scale is None else tensor / tf.cast(scale, tensor.dtype)

    def values(self) -> dict[str, np.ndarray]:
        """The residuals of this rank, by weight; no entry for one that has lost nothing."""
        return self._state.values(RESIDUAL)

    def residual(self, weight: str, gradient: tf.Tensor) -> tf.Variable:
        """What the weight's gradients so far have lost, of the shape and dtype of this one."""
        return self._state.variable(
            RESIDUAL, weight, lambda: tf.zeros(gradient.shape, gradient.dtype)
        )


class Wire:
    """Makes what is sent of the gradients of one rank.

    Args:
        engine: connects the ranks.
        wire: ``float16`` or ``bfloat16``.
        feedback: keeps what is lost; None: it is lost.

    Attributes:
        dtype: of what is sent.

    Raises:
        UserError: the engine cannot sum this dtype.
    """

    def __init__(self, engine: Engine, wire: str, feedback: ErrorFeedback | None) -> None:
        check_wire(engine, wire)
        self.dtype = tf.as_dtype(wire)
        self._ranks = engine.size
        self._feedback = feedback
        # A power of two: no rounding on the way can bring a sum of these above the largest number.
        exponent = _LARGEST_EXPONENT[self.dtype] - (engine.size - 1).bit_length()
        self._largest = 2.0**exponent

    def takes(self, dtype: tf.DType) -> bool:
        """Whether gradients of this dtype are sent in 16 bits; complex ones are not, say."""
        return bool(dtype.is_floating)

    def sent(self, weight: str, gradient: tf.Tensor) -> tf.Tensor:
        """What is sent of a gradient; the sum over the ranks is the mean.

        Called once a step, in the step that has the gradient. A gradient that has the wire's dtype
        has nothing to lose but what a division by the number of ranks rounds.
        """
        wide = gradient if gradient.dtype.size > 2 else tf.cast(gradient, tf.float32)
        wide /= self._ranks
        feedback = None if gradient.dtype == self.dtype else self._feedback
        if feedback is not None:
            wide = feedback.added(weight, wide)
        kept = tf.clip_by_value(wide, -self._largest, self._largest)
        sent = tf.cast(tf.where(tf.math.is_finite(wide), kept, wide), self.dtype)
        if feedback is not None:
            feedback.keep(weight, wide - tf.cast(sent, wide.dtype))
        return sent
