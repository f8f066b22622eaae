"""Lowers the learning rate after a warm start, so that the transferred weights are not lost."""

from __future__ import annotations

import logging
from typing import Any

import keras
from keras import ops

from ooodist.compat.keras_optimizer import rate_or_schedule
from ooodist.step.optimizer import optimizers_of, without_scaling

logger = logging.getLogger("ooodist")


@keras.saving.register_keras_serializable(package="ooodist")
class WarmStartRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc, unused-ignore]
    """A learning rate times a factor that rises from ``first`` to 1 within ``steps`` updates.

    Args:
        rate: a number or a Keras schedule.
        first: the initial factor, above 0.
        steps: updates until the factor is 1.
    """

    def __init__(self, rate: Any, first: float, steps: int) -> None:
        super().__init__()
        self.rate, self.first, self.steps = rate, first, steps

    def __call__(self, step: Any) -> Any:
        done = ops.minimum(ops.cast(step, "float32") / self.steps, 1.0)
        rate = self.rate(step) if callable(self.rate) else self.rate
        return ops.cast(rate, "float32") * (self.first + (1 - self.first) * done)

    def get_config(self) -> dict[str, Any]:
        rate = self.rate
        if callable(rate):
            rate = keras.saving.serialize_keras_object(rate)
        return {"rate": rate, "first": self.first, "steps": self.steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WarmStartRate:
        """Makes a schedule from the result of :meth:`get_config`."""
        rate = config["rate"]
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate)
        return cls(rate, config["first"], config["steps"])


def lower_at_first(model: keras.Model, share: float, steps: int) -> None:
    """Lowers the learning rates of a compiled model at first; call it before the first step.

    Args:
        model: the compiled model.
        share: the share by which they are lowered at first, 0 to below 1.
        steps: updates until they are no longer lowered.
    """
    if share <= 0:
        return
    logger.info(
        "warm start: the learning rate begins %.0f %% lower, for %d updates; until it is compiled "
        "again it is a schedule, which callbacks cannot set (lower_rate: 0 leaves it alone)",
        100 * share,
        steps,
    )
    for optimizer in optimizers_of(model):
        inner = without_scaling(optimizer)
        rate = rate_or_schedule(inner)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            inner.learning_rate = WarmStartRate(rate, 1 - share, steps)
            continue
        # Keras's own schedule, so that the saved model can be loaded without ooodist.
        rate = float(inner.learning_rate)
        inner.learning_rate = keras.optimizers.schedules.PolynomialDecay(
            (1 - share) * rate, steps, rate
        )
