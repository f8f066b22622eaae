"""Measures the backward units of a model split into stages, each assigned to its stage.

::

    rank 0   measures stage 0 as a model of its own, in parts       dX:b@1  2 ms   (unit @ call)
    rank 1   measures stage 1                                       dX:b@2  1 ms
    rank 0   traces the whole model, without memory for its weights
             dX:b has ops of calls 1 and 2, the last of stage 0 and the first of stage 1
             -> dX:b@1, 1 ms -> dX:b@0, 2 ms                                       (unit @ stage)

No rank has weights of other ranks' stages meanwhile.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.layers.attribution import by_call
from ooodist.pipeline.layers.in_parts import (
    equal_ranges,
    fewest_parts,
    measure_in_turns,
    traced_part,
    traced_whole,
)
from ooodist.pipeline.layers.measure import weight_bytes_by_call
from ooodist.pipeline.layers.part import Part
from ooodist.pipeline.stages import calls_of
from ooodist.planner.costs import StepCosts, UnitCost
from ooodist.profiler.compute import measure_owners, weight_costs
from ooodist.profiler.owners import Owner
from ooodist.profiler.step import StepToMeasure
from ooodist.step.all_ranks.objects import text_of_rank
from ooodist.step.backward import named_variables, names_by_id
from ooodist.util import yaml_dataclass


def measure_stage_units(
    splitter: BatchSplitter, stages: Sequence[range], own: Collection[int], engine: Engine
) -> StepCosts:
    """Measures a step on one micro-batch; returns the costs of its backward pass and weights only.

    A unit with ops of several stages (at a boundary, the input gradient of the next stage's first
    layer) becomes a chain of one unit per stage, named ``unit@stage``. The model stays as it is.
    All ranks call it, and get the same costs.

    Args:
        splitter: knows the model and the data.
        stages: the calls of each stage.
        own: the stages that this rank measures; it has their weights.
        engine: the engine of the job.

    Raises:
        UserError: the step cannot be measured.
    """
    with engine.agreed():
        calls = calls_of(splitter.model)
        held = weight_bytes_by_call(splitter.model, calls)
        ranges: list[range] = []
        measured_here: list[int] = []
        for stage, at in enumerate(stages):
            of_stage = held[at.start : at.stop]
            for each in equal_ranges(of_stage, fewest_parts(of_stage)):
                if stage in own:
                    measured_here.append(len(ranges))
                ranges.append(range(at.start + each.start, at.start + each.stop))
    found = Measured()

    @contextlib.contextmanager
    def traced_stage(number: int) -> Iterator[Callable[[], None]]:
        with traced_part(splitter, ranges, number) as (part, traced):
            yield lambda: found.add(part, traced, ranges[number].start, splitter.model)

    measure_in_turns(traced_stage, measured_here, ranges, calls, engine)
    of_all = [engine.broadcast_text(found.as_text(), rank) for rank in range(engine.size)]

    def costs() -> str:
        with traced_whole(splitter) as (part, traced):
            units = stage_units(part, traced, stages, merged(of_all), splitter.model)
        return yaml_dataclass.dump(units)

    return yaml_dataclass.read_text(StepCosts, text_of_rank(engine, costs), "of rank 0")


@dataclass
class Measured:
    """What ranks have measured.

    Attributes:
        units: for each call of the model, seconds by unit, as named in the step of a part.
        updates: seconds of each weight's update, by its name in the model.
    """

    units: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    updates: dict[str, float] = field(default_factory=dict)

    def add(self, part: Part, traced: StepToMeasure, first: int, model: keras.Model) -> None:
        """Measures a part whose first call is number ``first`` of the model."""
        call_of = _numbers(part, traced)
        owners: dict[tf.Operation, Owner] = {}
        for op, unit in traced.owner_of.items():
            if isinstance(unit, frozenset):
                owners[op] = unit
            elif op in call_of:
                owners[op] = f"{unit}@{first + call_of[op]}"
        seconds = measure_owners(replace(traced, owner_of=owners)).seconds
        for owner, spent in seconds.items():
            if isinstance(owner, str):
                unit, _, call = owner.rpartition("@")
                self.units[int(call)][unit] = spent
        names = names_in(model, part)
        for weight in weight_costs(traced, seconds):
            self.updates[names[weight.name]] = weight.update_seconds

    def as_text(self) -> str:
        """Writes it as JSON; see :func:`merged`."""
        return json.dumps({"units": self.units, "updates": self.updates})


def merged(texts: Sequence[str]) -> Measured:
    """What several ranks have measured, from :meth:`Measured.as_text`.

    The update of a weight that several have measured takes the longest of these times.
    """
    found = Measured()
    for text in texts:
        read: dict[str, Any] = json.loads(text)
        for call, units in read["units"].items():
            found.units[int(call)] |= units
        for name, spent in read["updates"].items():
            found.updates[name] = max(spent, found.updates.get(name, 0.0))
    return found


def stage_units(
    whole: Part,
    traced: StepToMeasure,
    stages: Sequence[range],
    measured: Measured,
    model: keras.Model,
) -> StepCosts:
    """The units of a step of the whole model, divided among stages, and what they cost.

    Args:
        whole: the whole model as one part.
        traced: its step.
        stages: the calls of each stage.
        measured: each call was measured in the step of some part.
        model: the whole model itself.
    """
    call_of, names = _numbers(whole, traced), names_in(model, whole)
    stage_of_call = [stage for stage, part in enumerate(stages) for _ in part]
    ops: dict[int, Counter[str]] = defaultdict(Counter)
    for unit in (*traced.step.forward, *traced.step.backward):
        for op in unit.ops:
            ops[call_of[op]][unit.name] += 1
    seconds: dict[str, float] = defaultdict(float)
    for call, units in ops.items():
        for name, spent in assigned(measured.units[call], units).items():
            seconds[unit_of_stage(name, stage_of_call[call])] += spent
    backward: list[UnitCost] = []
    last: dict[str, str] = {}  # for each unit, its part that runs last
    for unit in traced.step.backward:
        needs = tuple(sorted(last[name] for name in unit.needs))
        of_unit = sorted({stage_of_call[call_of[op]] for op in unit.ops}, reverse=True)
        for stage in of_unit:
            name = unit_of_stage(unit.name, stage)
            weights = tuple(names[n] for n in unit.variables) if stage == of_unit[-1] else ()
            backward.append(UnitCost(name, unit.kind, seconds.get(name, 0.0), needs, weights))
            needs = (name,)
        last[unit.name] = unit_of_stage(unit.name, of_unit[-1])
    updated = (
        replace(weight, name=name, update_seconds=measured.updates.get(name, 0.0))
        for weight in weight_costs(traced, {})
        for name in (names[weight.name],)
    )
    return StepCosts(forward=(), backward=tuple(backward), weights=tuple(updated))


def names_in(model: keras.Model, part: Part) -> dict[str, str]:
    """The name in a model of each variable of a part of it, by its name in the part."""
    names = names_by_id(model)
    return {name: names.get(id(v), name) for name, v in named_variables(part.model).items()}


def assigned(measured: Mapping[str, float], units: Mapping[str, int]) -> dict[str, float]:
    """Assigns the seconds of a call's units, in the step of a part, to those of the whole model.

    A unit of the same name gets them. Some have other names or kinds, as weights of other parts
    are unknown there: what such units took is divided among those that got nothing, of the same
    kind if possible, in proportion to their ops. What the whole model does not compute is left out.

    Args:
        measured: seconds by unit.
        units: numbers of ops in this call by unit of the whole model.
    """
    found = {unit: measured.get(unit, 0.0) for unit in units}
    without = [unit for unit in units if unit not in measured]
    for name, spent in measured.items():
        if name in units:
            continue
        alike = [unit for unit in without if _kind(unit) == _kind(name)]
        same_pass = [unit for unit in without if (_kind(unit) == "F") == (_kind(name) == "F")]
        for_it = alike or same_pass or [unit for unit in units if _kind(unit) == _kind(name)]
        total = sum(units[unit] for unit in for_it)
        for unit in for_it:
            found[unit] += spent * units[unit] / total
    return found


def _kind(unit: str) -> str:
    return unit.partition(":")[0]


def unit_of_stage(unit: str, stage: int) -> str:
    """The name of a stage's part of a unit."""
    return f"{unit}@{stage}"


def stage_of_unit(name: str) -> int:
    """The stage in a name of :func:`unit_of_stage`."""
    return int(name.rpartition("@")[2])


def _numbers(part: Part, traced: StepToMeasure) -> dict[tf.Operation, int]:
    """Finds for each op of a unit the number of its call among those that the part is made of;
    ops of scales are left out."""
    found = {
        op: int(owner.partition(":")[2])
        for op, owner in by_call(traced, part.model.name, part.calls).items()
        if isinstance(owner, str)
    }
    # An op whose name tells no call, such as a sum of two gradients, goes with its unit.
    known: dict[Owner, int] = {}
    for op, call in found.items():
        if op in traced.owner_of:
            known.setdefault(traced.owner_of[op], call)
    numbers = {}
    for op, unit in traced.owner_of.items():
        number = part.numbers[found.get(op, known.get(unit, len(part.calls) - 1))]
        if number is not None:
            numbers[op] = number
    return numbers
