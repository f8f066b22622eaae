"""Importance: the decrease of the loss to expect from a weight's next update.

With g the gradient and D the optimizer's step, the loss decreases by about -g . D, a sum over all
weights. Each weight's term is its importance::

    D = step(g) on one batch        s_k = sum_i g_k,i D_k,i with g of the next batch

This differs from the source in three ways:

* D and g come from different batches, in a circle: on the same batch a gradient of pure noise would
  seem to help. A batch's g is combined with the D of the previous batch, so that each batch takes a
  single forward and backward pass.
* D is the first step of a new optimizer for all weights: otherwise a weight that was trained until
  now, and has full moments, could not be compared with one that was not.
* g is computed before the step D, not after it. Steps of all weights at once go too far: with
  ResNet-20 on the digits after 50 steps of Adam, g after D says that the update helps of 27 % of
  the tensors, and g before D says so of 93 %; the loss falls by two thirds
  (expr/elastic/gradient_place.py).

Afterwards everything is restored bit for bit: weights, optimizer state, counts, the learning rate,
random states and batch-norm statistics.

Source: Huang, Yang, Gao, "ElasticTrainer: speeding up on-device training with runtime elastic
tensor selection", MobiSys 2023, section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from scipy.stats import spearmanr

from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.elastic.selection.items import Selectable
from ooodist.graph.units import Gradient
from ooodist.profiler.state import all_variables, preserved
from ooodist.profiler.step import as_tensors
from ooodist.step.backward import variable_names
from ooodist.step.execution import Batch, uncompiled
from ooodist.step.tape import watch_gradients


class Measured(NamedTuple):
    """Means over batches for each weight, by its name.

    Attributes:
        loss_change: change of the loss by the weight's next update; negative if it helps.
        gradient: sum of the absolute values of its gradient.
    """

    loss_change: dict[str, float]
    gradient: dict[str, float]


class Probe:
    """Measures how much each weight matters.

    Args:
        model: compiled and built.
        optimizer_state: the state of its optimizer.
    """

    def __init__(self, model: keras.Model, optimizer_state: OptimizerState) -> None:
        self._model, self._optimizer_state = model, optimizer_state
        self._traced = tf.function(self._run, autograph=False, reduce_retracing=True)

    def __call__(self, batches: Sequence[Batch]) -> Measured:
        """Measures all weights, with one forward and backward pass per batch.

        Args:
            batches: at least one, as the data yields them; a single batch also serves as the next.
        """
        batches = as_tensors(list(batches))
        graph = self._traced.get_concrete_function(batches[0]).graph
        variables = [*all_variables(self._model, graph), *self._optimizer_state.variables]
        total = Totals(len(batches))
        for batch in batches:
            with preserved(variables):
                total.add(*self._traced(batch))
        return total.measured()

    def _run(self, batch: Batch) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Gradients and steps, as float32 tensors by weight name."""
        model = self._model
        weights = model.trainable_variables
        self._optimizer_state.reset(list(self._optimizer_state.counts))
        before = [tf.identity(weight.value) for weight in weights]
        gradients: dict[str, Gradient] = {}

        def note(
            _target: Any, _seeds: Any, found: Sequence[Gradient], variables: Sequence[Any]
        ) -> list[Gradient]:
            gradients.update(zip(variable_names(variables), found, strict=True))
            return list(found)

        with uncompiled(model), self._optimizer_state.counting(), watch_gradients(note):
            model.train_step(batch)
        dense, steps = {}, {}
        for name, weight, old in zip(variable_names(weights), weights, before, strict=True):
            gradient = gradients.get(name)
            if gradient is not None:
                dense[name] = tf.cast(gradient, tf.float32)
                steps[name] = tf.cast(weight.value - old, tf.float32)
        return dense, steps


class Totals:
    """Accumulates gradients and steps over consecutive batches.

    Args:
        batches: how many will be added.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._total = Measured({}, {})
        self._first: dict[str, tf.Tensor] = {}
        self._steps: dict[str, tf.Tensor] = {}

    def add(self, gradients: dict[str, tf.Tensor], steps: dict[str, tf.Tensor]) -> None:
        """Adds a batch: the gradients of the weights, and their first steps, by name."""
        self._first = self._first or gradients
        self._change(gradients)
        self._steps = steps
        self._count(self._total.gradient, _absolute_sums(gradients))

    def measured(self) -> Measured:
        """The means; the first batch counts as the one after the last."""
        self._change(self._first)
        return self._total

    def _change(self, gradients: dict[str, tf.Tensor]) -> None:
        self._count(self._total.loss_change, _products(gradients, self._steps))

    def _count(self, sums: dict[str, float], values: dict[str, tf.Tensor]) -> None:
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + float(value) / self._batches


# Traced, as calling each of many small operations would take longer than computing it.
@tf.function(autograph=False)
def _products(gradients: dict[str, tf.Tensor], steps: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The dot product of each weight's gradient and step, as a scalar."""
    return {
        name: tf.tensordot(tf.reshape(gradients[name], [-1]), tf.reshape(step, [-1]), 1)
        for name, step in steps.items()
    }


@tf.function(autograph=False)
def _absolute_sums(gradients: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The sum of the absolute values of each gradient, as a scalar."""
    return {name: tf.reduce_sum(tf.abs(gradient)) for name, gradient in gradients.items()}


def by_item(choice: Selectable, change: Mapping[str, float]) -> np.ndarray:
    """Each item's importance: minus its loss change by the largest of all, -1 to 1.

    All are equal if nothing changes the loss, as at a learning rate of zero.
    """
    changes = np.array([sum(change.get(name, 0.0) for name in i.weights) for i in choice.items])
    largest = np.abs(changes).max(initial=0.0)
    if not 0 < largest < np.inf:
        return np.ones(len(changes))
    return -changes / largest


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation, -1 to 1; None if one side is constant."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return None
    return float(spearmanr(one, other).statistic)
