"""Measures the backward units of a model split into stages, each assigned to its stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import keras
import tensorflow as tf

from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.layers.attribution import by_call
from ooodist.pipeline.stages import calls_of
from ooodist.planner.costs import StepCosts, UnitCost
from ooodist.profiler.compute import measure_owners, weight_costs
from ooodist.profiler.owners import Owner
from ooodist.profiler.step import StepToMeasure, trace_step


def measure_stage_units(
    model: keras.Model, splitter: BatchSplitter, parts: Sequence[range]
) -> StepCosts:
    """Measures a step on one micro-batch; returns the costs of its backward pass and weights only.

    A unit with ops of several stages (at a boundary, the input gradient of the next stage's first
    layer) becomes a chain of one unit per stage, named ``unit@stage``. The model stays as it is.

    Args:
        model: functional or sequential, compiled.
        splitter: knows the data.
        parts: the calls of each stage.

    Raises:
        UserError: the step cannot be measured.
    """
    traced = trace_step(model, splitter.first())
    stage_of = _stages(traced, model, parts)
    owners: dict[tf.Operation, Owner] = {
        op: unit if isinstance(unit, frozenset) else unit_of_stage(unit, stage_of[op])
        for op, unit in traced.owner_of.items()
    }
    seconds = measure_owners(replace(traced, owner_of=owners)).seconds
    units: list[UnitCost] = []
    last: dict[str, str] = {}  # for each unit, its part that runs last
    for unit in traced.step.backward:
        needs = tuple(sorted(last[name] for name in unit.needs))
        stages = sorted({stage_of[op] for op in unit.ops}, reverse=True)
        for stage in stages:
            name = unit_of_stage(unit.name, stage)
            weights = unit.variables if stage == stages[-1] else ()
            units.append(UnitCost(name, unit.kind, seconds.get(name, 0.0), needs, weights))
            needs = (name,)
        last[unit.name] = unit_of_stage(unit.name, stages[-1])
    return StepCosts(forward=(), backward=tuple(units), weights=weight_costs(traced, seconds))


def unit_of_stage(unit: str, stage: int) -> str:
    """Returns the name of a stage's part of a unit."""
    return f"{unit}@{stage}"


def stage_of_unit(name: str) -> int:
    """Returns the stage in a name of :func:`unit_of_stage`."""
    return int(name.rpartition("@")[2])


def _stages(
    traced: StepToMeasure, model: keras.Model, parts: Sequence[range]
) -> dict[tf.Operation, int]:
    """Returns the stage of each op that belongs to a unit."""
    calls = calls_of(model)
    stage_of_call = [stage for stage, part in enumerate(parts) for _ in part]
    found: dict[tf.Operation, int] = {}
    for op, owner in by_call(traced, model.name, calls).items():
        if isinstance(owner, str):
            found[op] = stage_of_call[int(owner.partition(":")[2])]
    # An op whose name tells no call, such as a sum of two gradients, goes with its unit.
    known: dict[Owner, int] = {}
    for op, stage in found.items():
        if op in traced.owner_of:
            known.setdefault(traced.owner_of[op], stage)
    return {
        op: found.get(op, known.get(unit, len(parts) - 1)) for op, unit in traced.owner_of.items()
    }
