"""The optimizer state of each weight, and how often the weight was updated.

Keras counts steps once for all weights. Adam, told that it is at step 1001, takes the empty moments
of a weight that has never been trained for those of 1000 gradients of zero, and moves it by three
times the learning rate. So each weight has a count of its own here, which the optimizer sees while
it updates that weight. Schedules of the learning rate go by the count of all steps, as ever.

A weight that is no longer selected loses its moments and its count: when it comes back they would
belong to another loss, and it starts as at the beginning of a training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers import Optimizer

from ooodist.compat.keras_optimizer import showing_iterations
from ooodist.compat.tensorflow_graph import handle_of
from ooodist.errors import UserError
from ooodist.step.backward import variable_names
from ooodist.step.optimizer import optimizer_state_of, optimizers_of, without_scaling

_AVERAGE = "_average"  # of the weight itself (use_ema): no state of its updates


class OptimizerState:
    """The optimizer state of all weights of a model.

    Args:
        model: compiled and built, its optimizer too.

    Attributes:
        counts: updates of each trained weight, by its name.

    Raises:
        UserError: an optimizer accumulates gradients itself.
    """

    def __init__(self, model: keras.Model) -> None:
        self._optimizers = [without_scaling(optimizer) for optimizer in optimizers_of(model)]
        for optimizer in self._optimizers:
            if optimizer.gradient_accumulation_steps:
                raise UserError(
                    "optimizer.gradient_accumulation_steps is "
                    f"{optimizer.gradient_accumulation_steps}, which elastic training cannot "
                    "count; leave it out, and set accumulate instead"
                )
        weights = model.trainable_variables
        began = model.optimizer.iterations.numpy()
        names = variable_names(weights)
        self.counts = {name: tf.Variable(began, trainable=False) for name in names}
        self._count_of = {
            id(handle_of(weight)): self.counts[name]
            for weight, name in zip(weights, names, strict=True)
        }
        weight_of = dict(zip(names, weights, strict=True))
        self._variables: dict[str, list[tuple[keras.Variable, float | keras.Variable]]] = {}
        for optimizer in self._optimizers:
            for variable, path in optimizer_state_of(optimizer, names):
                if path and not variable.path.endswith(_AVERAGE):
                    initial = _initial(optimizer, variable, weight_of[path])
                    self._variables.setdefault(path, []).append((variable, initial))

    @property
    def variables(self) -> list[tf.Variable]:
        """What a step changes of this."""
        return list(self.counts.values())

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Updates that are traced in this block see, and raise, the counts of their weights."""
        for optimizer in self._optimizers:
            optimizer.update_step = self._counted(optimizer, optimizer.update_step)
        try:
            yield
        finally:
            for optimizer in self._optimizers:
                del optimizer.update_step

    def _counted(
        self, optimizer: Optimizer, plain: Callable[[Any, Any, Any], None]
    ) -> Callable[[Any, Any, Any], None]:
        def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
            count = self._count_of.get(id(handle_of(variable)))
            if count is None:  # no weight of the model
                plain(gradient, variable, learning_rate)
                return
            with showing_iterations(optimizer, count):
                plain(gradient, variable, learning_rate)
            count.assign_add(1)

        return update_step

    def reset(self, names: Collection[str]) -> None:
        """Gives these weights the state that they had before the first step."""
        for name in names:
            self.counts[name].assign(0)
            for variable, initial in self._variables.get(name, ()):
                value = initial.value if isinstance(initial, keras.Variable) else initial
                variable.assign(tf.broadcast_to(tf.cast(value, variable.dtype), variable.shape))

    def state(self) -> dict[str, int]:
        """The counts, for a checkpoint (which has the variables already)."""
        return {name: int(count.numpy()) for name, count in self.counts.items()}

    def restore(self, state: Mapping[str, int]) -> None:
        """Takes the counts of a checkpoint."""
        for name, number in state.items():
            self.counts[name].assign(number)


def _initial(
    optimizer: Optimizer, variable: keras.Variable, weight: keras.Variable
) -> float | keras.Variable:
    """The first value of an optimizer's variable: 0, a constant, or a copy of its weight."""
    if type(optimizer).__name__ == "ScheduleFreeAdamW" and variable.path.endswith("_momentum"):
        return weight
    if variable.path.endswith("_accumulator"):  # Adagrad's and Ftrl's
        return float(getattr(optimizer, "initial_accumulator_value", 0.0))
    return 0.0
