"""Predicts the seconds of selections from the unit profile of a step.

The profile has the cost of each backward unit, and the units' ``needs`` tell which of them a
selection needs. So the costs of any selection are known without measuring it:

* :func:`selectable_of` groups the weights into items: those whose gradients one unit completes.
* :func:`reduced` gives the costs of a selection with the units of the full step: to predict.
* :func:`masked` gives them with the units of the selection's own traced step: to plan.
* :func:`calibrated` runs three selections, and finds how much longer they take than these costs
  say; a kept profile has that, too.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import keras
import numpy as np
import tensorflow as tf
from scipy.optimize import nnls

from ooodist import engines
from ooodist.elastic.selection.items import Item, Selectable
from ooodist.engines.base import Engine
from ooodist.engines.devices import seconds_of
from ooodist.graph.digest import model_digest
from ooodist.graph.units import find_backward_units
from ooodist.planner.costs import StepCosts, UnitCost
from ooodist.profiler.compute import undisturbed
from ooodist.profiler.folder import Calibration
from ooodist.profiler.owners import find_owners
from ooodist.profiler.saved_tensors import saved_tensors
from ooodist.profiler.state import all_variables, preserved
from ooodist.profiler.step import StepToMeasure, as_tensors
from ooodist.step.backward import OrderedBackward
from ooodist.step.exchange import GradientExchange
from ooodist.step.execution import Batch, Execution

logger = logging.getLogger("ooodist")

CALIBRATION_ROUNDS = 15
MOST_SECONDS = 12.0  # for all rounds; at least three run
WARM_UP_RUNS = 2


def selectable_of(costs: StepCosts) -> Selectable:
    """What can be selected in a step with these costs."""
    update = {weight.name: weight.update_seconds for weight in costs.weights}
    until = needed_until(costs.backward)
    items, path = [], set[str]()
    for unit in costs.backward:
        if not unit.weights:
            continue
        # Other units need the rest of this unit's work: it is charged like the path to it.
        own = unit.seconds if unit.kind == "dW" else 0.0
        needs = until[unit.name] - ({unit.name} if unit.kind == "dW" else set())
        path |= needs
        updates = sum(update[name] for name in unit.weights)
        items.append(Item(_name(unit.weights), unit.weights, own + updates, needs))
    completed = {name for item in items for name in item.weights}
    # Weights that the loss depends on only through a regularizer, if at all.
    items += [
        Item(name, (name,), seconds_of_update, frozenset())
        for name, seconds_of_update in update.items()
        if name not in completed
    ]
    fixed = sum(unit.seconds for unit in costs.forward)
    fixed += costs.middle_seconds + costs.launch_seconds
    path_seconds = {unit.name: unit.seconds for unit in costs.backward if unit.name in path}
    return Selectable(tuple(items), path_seconds, fixed)


def reduced(costs: StepCosts, selected: Collection[str]) -> StepCosts:
    """The costs of training only these weights, with the units of the full step.

    A unit is left out if nothing selected needs it.
    """
    until = needed_until(costs.backward)
    needed = {
        name
        for unit in costs.backward
        if not set(selected).isdisjoint(unit.weights)
        for name in until[unit.name]
    }
    left = needed | {unit.name for unit in costs.forward}

    def with_selected(unit: UnitCost) -> UnitCost:
        return replace(unit, weights=tuple(name for name in unit.weights if name in selected))

    tensors = []
    for tensor in costs.tensors:
        users = tuple(name for name in tensor.used_by if name in left)
        if tensor.made_by in left and (users or not tensor.used_by):
            tensors.append(replace(tensor, used_by=users))
    return replace(
        costs,
        forward=tuple(map(with_selected, costs.forward)),
        backward=tuple(with_selected(unit) for unit in costs.backward if unit.name in needed),
        weights=tuple(weight for weight in costs.weights if weight.name in selected),
        tensors=tuple(tensors),
    )


def masked(
    costs: StepCosts, traced: StepToMeasure, selected: Collection[str]
) -> tuple[StepCosts, str]:
    """The costs of training only these weights, with the units of their own traced step.

    These differ from the full step's: dX units that differ only in unselected weights are one, and
    what only a single selected weight needs belongs to its dW.

    Args:
        costs: costs of the full step.
        traced: the full step, traced without an order.
        selected: names of weights.

    Returns:
        the costs, and the digest of the units, by which plans identify the model.
    """
    names = [weight.name for weight in traced.weights]
    gradients = [w.gradient if w.name in selected else None for w in traced.weights]
    units = find_backward_units(traced.seeds, gradients, names)
    unit_of = {op: unit.name for unit in traced.step.backward for op in unit.ops}
    seconds = {unit.name: unit.seconds for unit in costs.backward}
    kept = [weight for weight in traced.weights if weight.name in selected]
    # A dX unit of the full step may be divided here: into early and late parts of the only dW
    # that still needs it.
    ops = Counter(unit_of[op] for unit in units for op in unit.ops)
    step = replace(traced.step, backward=units)
    backward = tuple(
        UnitCost(
            unit.name,
            unit.kind,
            sum(
                seconds[name] * (number / ops[name])
                for name, number in Counter(unit_of[op] for op in unit.ops).items()
            ),
            tuple(sorted(unit.needs)),
            unit.variables,
        )
        for unit in units
    )
    found = replace(
        reduced(costs, selected),
        backward=backward,
        tensors=saved_tensors(step, find_owners(step, kept), kept),
    )
    return found, model_digest(units)


@dataclass(frozen=True)
class Check:
    """A selection's median seconds per step: measured, predicted, and after calibration."""

    name: str
    measured: float
    predicted: float
    calibrated: float

    @property
    def error(self) -> float:
        """The relative error of the calibrated prediction."""
        return self.calibrated / self.measured - 1


def calibrated(
    model: keras.Model, batch: Batch, costs: StepCosts, engine: Engine, *, accumulate: int = 1
) -> tuple[Calibration, tuple[Check, ...]]:
    """Runs three selections and fits the costs to them. The model stays as it is.

    The selections are all items, the half of them next to the output, and the head. Two factors,
    for what is always computed and for what can be selected, are fitted by least squares of the
    relative errors. All ranks call it; the slowest counts.

    Returns:
        the factors, for :func:`scaled`, and the three checks.
    """
    choice = selectable_of(costs)
    masks = three_selections(choice)
    runs = [_run_of(model, batch, choice.weights(mask), accumulate) for mask in masks.values()]
    with preserved(all_variables(model, runs[0].graph)):
        measured = engine.all_reduce(np.array(timed([run.run for run in runs])), "max")

    fixed = choice.fixed_seconds
    predicted = [choice.seconds(mask) for mask in masks.values()]
    matrix = np.array([[fixed, seconds - fixed] for seconds in predicted]) / measured[:, None]
    factors, _ = nnls(matrix, np.ones(len(matrix)))
    checks = tuple(
        Check(name, float(took), before, float(factors @ [fixed, before - fixed]))
        for name, took, before in zip(masks, measured, predicted, strict=True)
    )
    logger.info(
        "elastic: %s",
        "; ".join(
            f"{check.name}: measured {check.measured * 1e3:.1f} ms a step, predicted "
            f"{check.predicted * 1e3:.1f}, calibrated {check.calibrated * 1e3:.1f} "
            f"({check.error * 1e2:+.1f} %)"
            for check in checks
        ),
    )
    return Calibration(float(factors[0]), float(factors[1])), checks


def three_selections(choice: Selectable) -> dict[str, frozenset[int]]:
    """Three selections to check predictions: all, the half next to the output, the head."""
    numbers = range(len(choice.items))
    head = frozenset(choice.head)
    half = frozenset(numbers[: (len(numbers) + 1) // 2]) | head
    return {"all": frozenset(numbers), "half": half, "head": head}


def fitted_waiting(
    computing: Sequence[float], simulated: Sequence[float], measured: Sequence[float]
) -> float:
    """The factor, at least 0, from simulated to measured seconds of waiting.

    It is fitted by least squares of the relative errors.

    Args:
        computing: seconds of steps without their exchange.
        simulated, measured: seconds of the same steps with it.
    """
    took = np.array(measured)
    matrix = (np.array(simulated) - np.array(computing))[:, None] / took[:, None]
    (waiting,), _ = nnls(matrix, 1 - np.array(computing) / took)
    return float(waiting)


@dataclass(frozen=True)
class _Run:
    run: Callable[[], float]
    graph: tf.Graph


def _run_of(model: keras.Model, batch: Batch, selected: Collection[str], accumulate: int) -> _Run:
    """Makes a call of one step, as it is trained on one worker."""
    backward = OrderedBackward(GradientExchange(engines.alone()), selected=selected)
    execution = Execution(model, backward, accumulate=accumulate)
    batches = as_tensors((batch,) * accumulate)

    return _Run(lambda: seconds_of(lambda: execution(batches)), execution.trace(batches))


def timed(
    runs: Sequence[Callable[[], float]],
    rounds: int = CALIBRATION_ROUNDS,
    most_seconds: float = MOST_SECONDS,
) -> list[float]:
    """Finds for each run the median of its faster half, measured in turns.

    Args:
        runs: return their seconds.
        rounds: how often each is run.
        most_seconds: after this time no round begins, but three always run; infinite for runs with
            exchanges, as all ranks must do the same number.
    """
    for run in runs:
        for _ in range(WARM_UP_RUNS):
            run()
    seconds: list[list[float]] = [[] for _ in runs]
    began = time.perf_counter()
    for number in range(rounds):
        for run, found in zip(runs, seconds, strict=True):
            found.append(run())
        if number >= 2 and time.perf_counter() - began > most_seconds:
            break
    return [undisturbed(found) for found in seconds]


def scaled(costs: StepCosts, calibration: Calibration) -> StepCosts:
    """The costs in seconds of elastic steps."""
    fixed, selectable = calibration.fixed, calibration.selectable

    def times(units: Sequence[UnitCost], factor: float) -> tuple[UnitCost, ...]:
        return tuple(replace(unit, seconds=unit.seconds * factor) for unit in units)

    return replace(
        costs,
        forward=times(costs.forward, fixed),
        backward=times(costs.backward, selectable),
        weights=tuple(
            replace(weight, update_seconds=weight.update_seconds * selectable)
            for weight in costs.weights
        ),
        middle_seconds=costs.middle_seconds * fixed,
        launch_seconds=costs.launch_seconds * fixed,
    )


def needed_until(units: Sequence[UnitCost]) -> dict[str, frozenset[str]]:
    """Finds, for each unit, itself and all that must run before it; units in baseline order."""
    until: dict[str, frozenset[str]] = {}
    for unit in units:
        until[unit.name] = frozenset({unit.name}).union(*(until[name] for name in unit.needs))
    return until


def _name(weights: Sequence[str]) -> str:
    """``dense`` for the weights of one layer, ``dense/kernel`` for a single weight."""
    if len(weights) == 1:
        return weights[0]
    layers = dict.fromkeys(name.rpartition("/")[0] or name for name in weights)
    return "+".join(layers)
