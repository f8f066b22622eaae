"""Measures what the layers of a model cost on this machine, in a step on one micro-batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import keras

from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.layers.attribution import UNTIL, by_call, owner_of, saved_by_layer
from ooodist.pipeline.stages import Call, calls_of, crossing_bytes
from ooodist.planner.pipeline.layer_costs import LayerCost
from ooodist.profiler.compute import measure_owners
from ooodist.profiler.owners import Owner
from ooodist.profiler.step import StepToMeasure, trace_step
from ooodist.step.backward import names_by_id
from ooodist.step.sharding.state import size_of, state_bytes, summed_as

LAYER_STEPS = 12
FEW_LAYER_STEPS = 3  # enough to balance stages, which are measured themselves

Saved = Mapping[tuple[str, str], int]  # bytes, by layer and one of UNTIL


class CallSeconds(NamedTuple):
    """Seconds of one call of a layer; those of the update are of its layer's first one."""

    forward: float = 0.0
    input_gradient: float = 0.0
    weight_gradient: float = 0.0
    update: float = 0.0


def measure_layers(
    model: keras.Model, batch: Any, microbatches: int, *, steps: int = LAYER_STEPS
) -> tuple[LayerCost, ...]:
    """The costs of a model's calls (see :func:`ooodist.pipeline.stages.calls_of`).

    The model stays as it is.

    Args:
        model: compiled, functional or sequential.
        batch: as its data set yields it.
        microbatches: number of micro-batches into which it is split.
        steps: steps that are recorded; some more are run.

    Raises:
        UserError: the model or the batch cannot be split, or the step cannot be measured.
    """
    calls = calls_of(model)
    splitter = BatchSplitter(model, batch, microbatches)
    traced = trace_step(model, splitter.first())
    seconds = seconds_of_calls(traced, model, calls, steps)
    return layer_costs(model, calls, splitter, seconds, saved_by_layer(traced, calls))


def seconds_of_calls(
    traced: StepToMeasure, model: keras.Model, calls: Sequence[Call], steps: int
) -> list[CallSeconds]:
    """Runs a traced step and returns the seconds of each call.

    Args:
        traced: the step of a model.
        model: the model.
        calls: the calls of the model, in the order in which it makes them.
        steps: steps that are recorded; some more are run.
    """
    owners = by_call(traced, model.name, calls)
    seconds = measure_owners(replace(traced, owner_of=owners), steps=steps).seconds
    updates, names = _updates(seconds), names_by_id(model)
    found = []
    for number, (call, is_first) in enumerate(zip(calls, _are_first(calls), strict=True)):
        weights = getattr(call.layer, "trainable_variables", []) if is_first else []
        found.append(
            CallSeconds(
                seconds.get(owner_of("F", number), 0.0),
                seconds.get(owner_of("dX", number), 0.0),
                seconds.get(owner_of("dW", number), 0.0),
                sum(updates.get(names[id(weight)], 0.0) for weight in weights),
            )
        )
    return found


def layer_costs(
    model: keras.Model,
    calls: Sequence[Call],
    splitter: BatchSplitter,
    seconds: Sequence[CallSeconds],
    saved: Saved,
) -> tuple[LayerCost, ...]:
    """The costs of a model's calls from what was measured, and what shapes tell.

    Costs of a layer, rather than of one of its calls, go to its first call.

    Args:
        model: compiled.
        calls: its calls.
        splitter: knows the data.
        seconds: of each call.
        saved: what is saved for I and W.
    """
    sent = crossing_bytes(model, calls, splitter.size // splitter.microbatches)
    state, are_first = weight_bytes_by_call(model, calls), _are_first(calls)
    costs = []
    for number, call in enumerate(calls):
        weights = getattr(call.layer, "trainable_variables", []) if are_first[number] else []
        for_input, for_weight, from_input = (
            saved.get((call.layer.name, until), 0) if are_first[number] else 0 for until in UNTIL
        )
        costs.append(
            LayerCost(
                call.name,
                forward=seconds[number].forward,
                input_gradient=seconds[number].input_gradient,
                weight_gradient=seconds[number].weight_gradient,
                update=seconds[number].update if are_first[number] else 0.0,
                base_bytes=state[number].state + state[number].gradients,
                input_bytes=for_input,
                weight_bytes=for_weight,
                gradient_bytes=from_input,
                sent_bytes=sent[number],
                state_bytes=state[number].state,
                exchanged_bytes=sum(map(_summed_bytes, weights)),
                optimizer_bytes=state[number].optimizer,
            )
        )
    return tuple(costs)


def _summed_bytes(variable: keras.Variable) -> int:
    """The bytes of a weight's gradient as replicas sum it."""
    return summed_as(variable).itemsize * math.prod(variable.shape)


class WeightBytes(NamedTuple):
    """Bytes that the weights of a call take: with their optimizer state, their gradients, and the
    optimizer state alone."""

    state: int
    gradients: int
    optimizer: int = 0


def weight_bytes_by_call(model: keras.Model, calls: Sequence[Call]) -> list[WeightBytes]:
    """What each call of a model holds; a weight is held by the first call that has it."""
    state, names, seen, found = state_bytes(model), names_by_id(model), set[int](), []
    for call in calls:
        own = {id(variable): variable for variable in getattr(call.layer, "variables", [])}
        new = [variable for key, variable in own.items() if key not in seen]
        seen |= own.keys()
        found.append(
            WeightBytes(
                sum(state[names[id(variable)]] for variable in new),
                sum(size_of(variable) for variable in new if variable.trainable),
                sum(state[names[id(variable)]] - size_of(variable) for variable in new),
            )
        )
    return found


def _are_first(calls: Sequence[Call]) -> list[bool]:
    """Finds for each call whether it is the first one of its layer."""
    first = {id(call.layer): number for number, call in reversed([*enumerate(calls)])}
    return [first[id(call.layer)] == number for number, call in enumerate(calls)]


def _updates(seconds: Mapping[Owner | None, float]) -> dict[str, float]:
    """Seconds of each weight's update; a joint cost is divided equally among weights."""
    updates: dict[str, float] = {}
    for owner, spent in seconds.items():
        if isinstance(owner, frozenset):
            for name in owner:
                updates[name] = updates.get(name, 0.0) + spent / len(owner)
    return updates
