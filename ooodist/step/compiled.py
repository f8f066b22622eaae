"""A training step of which XLA compiles the forward and backward pass, and the update.

XLA drops the order of the backward pass, so nothing is ordered here, and no exchange begins before
the backward pass has ended::

    XLA       | forward and backward pass |                    | update |
    exchange                              |-- all gradients --|

With one worker nothing is exchanged, and XLA compiles Keras's ``train_step`` as a whole, as Keras
does. Its numbers are those of Keras's compiled step; they differ from those of a step that is not
compiled in the last bits, as XLA fuses other operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ooodist.graph.units import Gradient
from ooodist.step.backward import OrderedBackward, TracedStep, variable_names
from ooodist.step.optimizer import not_updating
from ooodist.step.tape import watch_gradients

Note = Callable[[Sequence[str], Sequence[Gradient]], None]


class CompiledStep:
    """Traces steps that XLA compiles.

    Args:
        model: a compiled model.
        backward: exchanges gradients, without a plan; its record of a step has no units.
        train_step: the model's. Unless :func:`is_whole`, it is Keras's own: one of the user's may
            use its gradients for anything.
    """

    def __init__(
        self, model: keras.Model, backward: OrderedBackward, train_step: Callable[[Any], Any]
    ) -> None:
        self._model = model
        self._backward = backward
        self._train_step = train_step
        self._weights: dict[str, Any] = {}  # that have gradients, by name
        self._is_whole = is_whole(backward)
        step = train_step if self._is_whole else self._gradients
        self._step = tf.function(step, autograph=False, jit_compile=True)
        self._update = tf.function(self._apply, autograph=False, jit_compile=True)

    def __call__(self, batch: Any, note: Note | None) -> Any:
        """Trains on a batch.

        Args:
            batch: as a data set yields it.
            note: gets the names and this rank's gradients of the weights, if there are others.

        Returns:
            the logs of the step.
        """
        if self._is_whole:
            self._backward.steps.append(TracedStep((), (), None, ()))
            return self._step(batch)
        logs, found = self._step(batch)
        names, weights = list(self._weights), self._weights.values()
        gradients = [_of_shape(each, w.shape) for each, w in zip(found, weights, strict=True)]
        if note is not None:
            note(names, gradients)
        # About in the order of the backward pass, as a step that is not compiled sends them.
        means, exchanges = self._backward.exchange.mean(gradients[::-1], names[::-1])
        self._backward.steps.append(TracedStep((), (), None, tuple(exchanges)))
        self._update(means[::-1])
        return logs

    def _gradients(self, batch: Any) -> tuple[Any, list[Gradient]]:
        kept: list[Gradient] = []

        def keep(
            _target: Any, _seeds: Any, gradients: Sequence[Gradient], variables: Sequence[Any]
        ) -> list[Gradient]:
            named = list(zip(variable_names(variables), variables, gradients, strict=True))
            self._weights = {name: each for name, each, found in named if found is not None}
            kept.extend(gradient for gradient in gradients if gradient is not None)
            return list(gradients)

        with watch_gradients(keep), not_updating(self._model):
            return self._train_step(batch), kept

    def _apply(self, gradients: Sequence[Gradient]) -> None:
        self._model.optimizer.apply(gradients, list(self._weights.values()))


def _of_shape(gradient: Gradient, shape: Iterable[int]) -> Gradient:
    """Rows with the shape of their table, which a function does not return with them."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(tuple(shape), tf.int64))


def is_whole(backward: OrderedBackward) -> bool:
    """Whether a step is compiled as a whole, as nothing happens to its gradients."""
    return backward.exchange.engine.size == 1 and not backward.exchange.sum_rows
