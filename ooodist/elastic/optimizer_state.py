"""The optimizer state of each weight, with a count of the weight's updates.

Keras counts steps once for all weights. Told that it is at step 1001, Adam takes the zero moments
of a weight that has never been trained for those of 1000 zero gradients, and moves it by three
times the learning rate. So each weight has a count of its own here, which the optimizer sees while
it updates that weight. Learning-rate schedules follow the count of all steps, as usual.

A weight that is no longer selected loses its moments and its count: by the time it comes back they
would belong to another loss, so it restarts as at the beginning of a training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers import Optimizer

from ooodist.compat.attributes import replaced
from ooodist.compat.keras_deferred import has_value
from ooodist.compat.keras_optimizer import showing_iterations
from ooodist.compat.tensorflow_graph import handle_of
from ooodist.errors import UserError
from ooodist.step.backward import variable_names
from ooodist.step.optimizer import optimizer_state_of, optimizers_of, without_scaling

_AVERAGE = "_average"  # of the weight itself (use_ema), not part of the state of its updates


def countable_optimizers(model: keras.Model) -> list[Optimizer]:
    """The optimizers of a compiled model. Raises UserError if one accumulates gradients itself."""
    found = [without_scaling(optimizer) for optimizer in optimizers_of(model)]
    for optimizer in found:
        if optimizer.gradient_accumulation_steps:
            raise UserError(
                "optimizer.gradient_accumulation_steps is "
                f"{optimizer.gradient_accumulation_steps}, which elastic training cannot "
                "count; leave it out, and set accumulate instead"
            )
    return found


class OptimizerState:
    """The optimizer state of the weights of a model that this rank has.

    Args:
        model: compiled and built, its optimizer too.

    Attributes:
        counts: the number of updates of each trained weight, by its name.

    Raises:
        UserError: an optimizer accumulates gradients itself.
    """

    def __init__(self, model: keras.Model) -> None:
        self._optimizers = countable_optimizers(model)
        weights = model.trainable_variables
        began = model.optimizer.iterations.numpy()
        names = variable_names(weights)
        self.counts = {name: tf.Variable(began, trainable=False) for name in names}
        self._count_of = {
            id(handle_of(weight)): self.counts[name]
            for weight, name in zip(weights, names, strict=True)
            if has_value(weight)
        }
        weight_of = dict(zip(names, weights, strict=True))
        self._variables: dict[str, list[tuple[keras.Variable, float | keras.Variable]]] = {}
        for optimizer in self._optimizers:
            for variable, name in optimizer_state_of(optimizer, weight_of):
                if name and has_value(variable) and not variable.path.endswith(_AVERAGE):
                    initial = _initial(optimizer, variable, weight_of[name])
                    self._variables.setdefault(name, []).append((variable, initial))

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables of this object that a step changes: the counts."""
        return list(self.counts.values())

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Makes updates traced in this block use and increment the counts of their weights."""
        with contextlib.ExitStack() as stack:
            for optimizer in self._optimizers:
                update_step = self._counted(optimizer, optimizer.update_step)
                stack.enter_context(replaced(optimizer, update_step=update_step))
            yield

    def _counted(
        self, optimizer: Optimizer, plain: Callable[[Any, Any, Any], None]
    ) -> Callable[[Any, Any, Any], None]:
        def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
            count = self._count_of.get(id(handle_of(variable)))
            if count is None:  # not a weight of the model
                plain(gradient, variable, learning_rate)
                return
            with showing_iterations(optimizer, count):
                plain(gradient, variable, learning_rate)
            count.assign_add(1)

        return update_step

    def reset(self, names: Collection[str]) -> None:
        """Resets these weights' optimizer state and counts to those before the first step."""
        for name in names:
            self.counts[name].assign(0)
            for variable, initial in self._variables.get(name, ()):
                value = initial.value if isinstance(initial, keras.Variable) else initial
                variable.assign(tf.broadcast_to(tf.cast(value, variable.dtype), variable.shape))

    def state(self) -> dict[str, int]:
        """The counts for a checkpoint, which has the optimizer's variables already."""
        return {name: int(count.numpy()) for name, count in self.counts.items()}

    def restore(self, state: Mapping[str, int]) -> None:
        """Sets the counts to those of a checkpoint."""
        for name, number in state.items():
            self.counts[name].assign(number)


def _initial(
    optimizer: Optimizer, variable: keras.Variable, weight: keras.Variable
) -> float | keras.Variable:
    """An optimizer variable's initial value: 0, a constant, or a copy of its weight."""
    if type(optimizer).__name__ == "ScheduleFreeAdamW" and variable.path.endswith("_momentum"):
        return weight
    if variable.path.endswith("_accumulator"):  # Adagrad's and Ftrl's
        return float(getattr(optimizer, "initial_accumulator_value", 0.0))
    return 0.0
