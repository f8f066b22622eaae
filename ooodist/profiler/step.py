"""Traces one training step in order to measure it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist import engines
from ooodist.compat.tensorflow_graph import capture, handle_of
from ooodist.engines.devices import seconds_of
from ooodist.errors import UserError
from ooodist.graph.digest import model_digest
from ooodist.graph.order import baseline_order
from ooodist.graph.units import Gradient
from ooodist.profiler.owners import Owner, Weight, find_owners
from ooodist.profiler.state import all_variables
from ooodist.step.backward import Order, OrderedBackward, TracedStep, variable_names
from ooodist.step.building import build
from ooodist.step.carried import CarriedGradients
from ooodist.step.exchange import GradientExchange
from ooodist.step.execution import Batch, Execution


@dataclass(frozen=True)
class StepToMeasure:
    """A traced step that can be run and measured; it exchanges nothing.

    Attributes:
        execution: runs the step on ``batches``.
        batches: the batches of one update.
        step: its units.
        weights: the weights that it trains.
        seeds: the tensors at which its backward pass begins.
        owner_of: the owners of its ops.
        variables: all variables that it may change.
        trace_seconds: seconds that tracing took, without TensorFlow's graph optimization.
    """

    execution: Execution
    batches: tuple[Batch, ...]
    step: TracedStep
    weights: tuple[Weight, ...]
    seeds: tuple[tf.Tensor, ...]
    owner_of: Mapping[tf.Operation, Owner]
    variables: tuple[tf.Variable, ...]
    trace_seconds: float

    @property
    def digest(self) -> str:
        """The digest of the model; see :func:`ooodist.graph.digest.model_digest`."""
        return model_digest(self.step.backward)

    def run(self) -> float:
        """Runs the step and returns the seconds until all of its work is done."""
        return seconds_of(lambda: self.gradients(self.batches))

    def gradients(self, batches: Sequence[Batch]) -> dict[str, tf.Tensor]:
        """Trains on the batches of one update; returns its dense gradients by weight name."""
        return self.execution(batches)


def trace_step(
    model: keras.Model,
    batch: Batch,
    *,
    accumulate: int = 1,
    order: Order = baseline_order,
    updating: Callable[[], AbstractContextManager[None]] | None = None,
) -> StepToMeasure:
    """Traces one step without running it.

    Args:
        model: a compiled model; built or not.
        batch: a batch as its data set yields it.
        accumulate: batches per update; each has the shapes of ``batch``.
        order: the order of the backward units; ``inorder`` adds no edges between them.
        updating: makes a context that is entered around the update while it is traced, or None.

    Raises:
        UserError: the step runs eagerly, trains nothing, or has several backward passes.
    """
    if model.run_eagerly:
        raise UserError(
            f"model {model.name} runs eagerly, so its step has no graph that could be measured "
            "and ordered; compile it with run_eagerly=False"
        )
    batch = as_tensors(batch)
    build(model, batch)
    backward = _WatchedBackward(order)
    execution = _Gradients(model, backward, accumulate=accumulate, updating=updating)
    batches = (batch,) * accumulate
    began = time.perf_counter()
    graph = execution.trace(batches)
    seconds = time.perf_counter() - began
    if len(backward.steps) != 1 or not backward.steps[0].backward:
        raise UserError(
            f"a step of model {model.name} has {len(backward.steps)} backward passes that reach "
            "weights; a plan needs exactly one: take order inorder or first_k with a k"
        )
    step, weights = backward.steps[0], tuple(backward.weights)
    return StepToMeasure(
        execution=execution,
        batches=batches,
        step=step,
        weights=weights,
        seeds=tuple(backward.seeds),
        owner_of=find_owners(step, weights),
        variables=tuple(all_variables(model, graph)),
        trace_seconds=seconds,
    )


def as_tensors(batches: Any) -> Any:
    """Converts the arrays in batches to tensors; everything else stays."""
    return tf.nest.map_structure(
        lambda leaf: tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, batches
    )


class _Gradients(Execution):
    """An execution of one step that returns its gradients in place of its logs."""

    backward: _WatchedBackward

    def _run(
        self, batches: tuple[Batch, ...], left: CarriedGradients | None, notices: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, CarriedGradients | None]:
        # Keras's metrics may make variables, and then TensorFlow traces twice.
        for noted in (self.backward.steps, self.backward.weights, self.backward.seeds):
            noted.clear()
        _, codes, left = super()._run(batches, left, notices)
        return self.backward.dense, codes, left


class _WatchedBackward(OrderedBackward):
    """Imposes an order, exchanges nothing, and records the weights and seeds.

    Attributes:
        dense: the gradients of the step that was traced last, by weight name.
    """

    def __init__(self, order: Order) -> None:
        super().__init__(GradientExchange(engines.alone()), order)
        self.weights: list[Weight] = []
        self.seeds: list[tf.Tensor] = []
        self.dense: dict[str, tf.Tensor] = {}

    def __call__(
        self,
        target: Sequence[tf.Tensor],
        seeds: Sequence[tf.Tensor],
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        carried: Collection[str] = (),
    ) -> list[Gradient]:
        result = super().__call__(target, seeds, gradients, variables, carried)
        self.seeds += seeds
        names = variable_names(variables)
        for name, variable, gradient in zip(names, variables, gradients, strict=True):
            if gradient is not None:
                self.weights.append(Weight(name, gradient, capture(handle_of(variable))))
        # Gradients of embeddings are exchanged, and then applied, as dense ones.
        dense = [None if g is None else tf.convert_to_tensor(g) for g in result]
        # No update runs beside a unit: on a single core it would interrupt and lengthen the unit.
        self.dense = {n: g for n, g in zip(names, dense, strict=True) if g is not None}
        with tf.control_dependencies(list(self.dense.values())):
            return [None if g is None else tf.identity(g) for g in dense]
