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

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from scipy.stats import spearmanr

from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.elastic.selection.items import Selectable
from ooodist.engines.devices import wait_for_gpu
from ooodist.profiler.state import preserved
from ooodist.profiler.step import StepToMeasure, as_tensors, trace_step
from ooodist.step.backward import variable_names
from ooodist.step.execution import Batch

MOST_SPREAD = 0.25  # of the seconds of full steps, which are one after the other


class Measured(NamedTuple):
    """Means over batches for each weight, by its name.

    Attributes:
        loss_change: change of the loss by the weight's next update; negative if it helps.
        gradient: sum of the absolute values of its gradient.
        full_seconds: the median seconds of the full steps that were measured, without an exchange;
            None if they differ too much, or were not timed.
    """

    loss_change: dict[str, float]
    gradient: dict[str, float]
    full_seconds: float | None = None


class Probe:
    """Measures how much each weight matters, by the full step that profiles are measured of.

    Args:
        model: compiled and built.
        optimizer_state: the state of its optimizer.
        accumulate: batches per update.
    """

    def __init__(
        self, model: keras.Model, optimizer_state: OptimizerState, accumulate: int = 1
    ) -> None:
        self._model, self._optimizer_state = model, optimizer_state
        self._accumulate = accumulate
        self._traced: StepToMeasure | None = None

    def traced(self, batch: Batch) -> StepToMeasure:
        """The full step, traced at the first call; batches of other shapes are traced later."""
        if self._traced is None:
            self._traced = trace_step(
                self._model,
                batch,
                accumulate=self._accumulate,
                updating=self._optimizer_state.counting,
            )
        return self._traced

    def __call__(self, batches: Sequence[Batch]) -> Measured:
        """Measures all weights, with one step for each ``accumulate`` batches.

        Args:
            batches: at least one, as the data yields them, and of one update at least, or they are
                taken several times; a single update also serves as the next.
        """
        batches, each = as_tensors(list(batches)), self._accumulate
        traced, weights = self.traced(batches[0]), self._model.trainable_variables
        names = variable_names(weights)
        while len(batches) < each:
            batches = [*batches, *batches]
        updates = [batches[n : n + each] for n in range(0, len(batches) - each + 1, each)]
        total, seconds = Totals(len(updates)), []
        with preserved([*traced.variables, *self._optimizer_state.variables]):
            before = [np.array(weight.numpy()) for weight in weights]
            for update in updates:
                self._optimizer_state.reset(list(self._optimizer_state.counts))
                began = time.perf_counter()
                gradients = traced.gradients(update)
                wait_for_gpu()
                seconds.append(time.perf_counter() - began)
                moved = zip(names, weights, before, strict=True)
                steps = {n: w.numpy() - old for n, w, old in moved if n in gradients}
                total.add({name: gradients[name] for name in steps}, steps)
                for weight, old in zip(weights, before, strict=True):
                    weight.assign(old)
        return total.measured()._replace(full_seconds=_steady(seconds))


def _steady(seconds: Sequence[float]) -> float | None:
    """The median; None if other programs disturb the steps. The first call may do more."""
    later = sorted(seconds[1:])
    if not later or later[-1] > later[0] * (1 + MOST_SPREAD):
        return None
    return statistics.median(later)


class Totals:
    """Accumulates gradients and steps over consecutive batches.

    Args:
        batches: how many will be added.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._total = Measured({}, {})
        self._first: dict[str, np.ndarray] = {}
        self._steps: dict[str, np.ndarray] = {}

    def add(self, gradients: Mapping[str, Any], steps: Mapping[str, Any]) -> None:
        """Adds a batch: the gradients of the weights, and their first steps, by name."""
        # As arrays: TensorFlow takes longer to begin so many small operations than to compute them.
        found = {name: _flat(gradient) for name, gradient in gradients.items()}
        self._first = self._first or found
        self._change(found)
        self._steps = {name: _flat(step) for name, step in steps.items()}
        self._count(self._total.gradient, {name: np.abs(g).sum() for name, g in found.items()})

    def measured(self) -> Measured:
        """The means; the first batch counts as the one after the last."""
        self._change(self._first)
        return self._total

    def _change(self, gradients: Mapping[str, np.ndarray]) -> None:
        products = {name: np.dot(gradients[name], step) for name, step in self._steps.items()}
        self._count(self._total.loss_change, products)

    def _count(self, sums: dict[str, float], values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + float(value) / self._batches


def _flat(tensor: Any) -> np.ndarray:
    """A tensor's values as float32, in one axis."""
    return np.asarray(tensor).astype(np.float32, copy=False).ravel()


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
