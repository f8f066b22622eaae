"""Warns when loss scaling leaves out one step after the other, so that nothing is trained."""

from __future__ import annotations

import logging

import keras

from ooodist.step.optimizer import optimizers_of

logger = logging.getLogger("ooodist")

IN_A_ROW = 10
"""Steps without any update, after which that is said."""


class Overflows:
    """Counts the updates of optimizers that scale the loss.

    Keras halves the scale with each step that overflows, and says nothing. Updates are counted
    every ten steps only, as reading a counter waits for an accelerator.

    Args:
        model: compiled.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._updates = self._steps = 0
        self._is_said = False

    def begin(self) -> None:
        """Starts counting, when training begins or resumes."""
        self._updates, self._steps, self._is_said = self._count(), 0, False

    def note(self, steps: int) -> None:
        """Takes note that so many more steps were made; it may log a warning."""
        self._steps += steps
        if self._steps < IN_A_ROW:
            return
        before, self._updates = self._updates, self._count()
        steps, self._steps = self._steps, 0
        scaling = _scaling(self._model)
        if not scaling or self._updates != before:
            self._is_said = False
            return
        if self._is_said:
            return
        self._is_said = True
        scale = float(scaling[0].dynamic_scale.numpy())
        logger.warning(
            "the gradients of the last %d steps have all overflowed in 16 bits, so that "
            "LossScaleOptimizer has left out each of them; its scale is %g now, half as much after "
            "each. Start with a smaller one: "
            "compile(keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=%g)). If it is "
            "far below 1 already, it is not the cause: divide the loss, lower the learning rate, "
            "look for values in the data that are not finite, or take mixed_bfloat16, which has "
            "the range of float32",
            steps,
            scale,
            scale / 2,
        )

    def _count(self) -> int:
        return sum(int(optimizer.iterations.numpy()) for optimizer in _scaling(self._model))


def _scaling(model: keras.Model) -> list[keras.optimizers.LossScaleOptimizer]:
    kind = keras.optimizers.LossScaleOptimizer
    return [each for each in optimizers_of(model) if isinstance(each, kind) and each.built]
