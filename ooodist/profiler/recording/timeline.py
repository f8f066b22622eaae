"""Builds the timeline of a recording: when the units and exchanges of each step ran."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import tensorflow as tf

from ooodist.graph.light_ops import LIGHT_OPS
from ooodist.graph.units import Kind
from ooodist.profiler.recording.intervals import merge_intervals
from ooodist.profiler.recording.matching import Recorded, match_steps, telling_ops
from ooodist.profiler.recording.xplane import OpEvent
from ooodist.step.backward import TracedStep


@dataclass(frozen=True)
class UnitRun:
    """One run of a unit, judged by those of its ops that tell when it ran.

    Attributes:
        step: number of the step in the recording, from 0.
        name, kind: name and kind of the unit.
        start, end: seconds since the recording began: first op's start, last op's end.
        busy: seconds during which at least one of the ops ran.
        events: the events of these ops, sorted by start.
        gated: the events of the unit's ops that can carry the control edges of an imposed order.
    """

    step: int
    name: str
    kind: Kind
    start: float
    end: float
    busy: float
    events: tuple[OpEvent, ...] = field(repr=False)
    gated: tuple[OpEvent, ...] = field(repr=False)


@dataclass(frozen=True)
class ExchangeRun:
    """One exchange, from when it was handed to the engine to its completion on this rank.

    Attributes:
        step: number of the step in the recording, from 0.
        name, weights, num_bytes: as in :class:`ooodist.step.exchange.Exchanged`.
        start, end: seconds since the recording began.
        after: the backward unit of this step that completed its gradients.
        before: the forward unit of the next step that uses its weights first; None if none was
            recorded.
    """

    step: int
    name: str
    weights: tuple[str, ...]
    num_bytes: int
    start: float
    end: float
    after: str | None
    before: str | None


@dataclass(frozen=True)
class Timeline:
    """The recorded runs, in the order of the steps and, within a step, sorted by start.

    Attributes:
        launches: the number of steps of each launch. A step is one backward pass; steps are
            numbered from 0 throughout.
        units, exchanges: the runs. A unit of which no op was found (TensorFlow had merged its ops
            into others) has none.
    """

    launches: tuple[int, ...]
    units: tuple[UnitRun, ...]
    exchanges: tuple[ExchangeRun, ...]

    @property
    def num_steps(self) -> int:
        """The number of recorded steps."""
        return sum(self.launches)


def make_timeline(events: Sequence[OpEvent], steps: Sequence[TracedStep]) -> Timeline:
    """Finds the runs of the units and exchanges of ``steps`` among ``events``.

    Args:
        events: from :func:`ooodist.profiler.recording.xplane.read_op_events`.
        steps: the traced steps: ``model.ooodist.strategy.inner.backward.steps``.
    """
    recorded = match_steps(events, steps)
    ops = {id(item.step): telling_ops(item.step) for item in recorded}
    runs = [_unit_runs(i, item, ops[id(item.step)]) for i, item in enumerate(recorded)]
    exchanges: list[ExchangeRun] = []
    for number, item in enumerate(recorded):
        later = number + 1
        uses = _first_uses(recorded[later].step, runs[later]) if later < len(recorded) else {}
        exchanges += _exchange_runs(number, item, runs[number], uses)
    units = [run for of_step in runs for run in sorted(of_step.values(), key=lambda run: run.start)]
    by_launch = itertools.groupby(recorded, key=lambda item: id(item.events))
    launches = tuple(len(list(items)) for _, items in by_launch)
    return Timeline(launches, tuple(units), tuple(exchanges))


def _unit_runs(
    number: int, recorded: Recorded, ops: Mapping[str, Sequence[tf.Operation]]
) -> dict[str, UnitRun]:
    runs = {}
    for unit in (*recorded.step.forward, *recorded.step.backward):
        events = tuple(recorded.of_ops(ops[unit.name]))
        gated = tuple(recorded.of_ops([op for op in unit.ops if op.type not in LIGHT_OPS]))
        if events:
            busy = merge_intervals((event.start, event.end) for event in events)
            seconds = sum(end - start for start, end in busy)
            runs[unit.name] = UnitRun(
                number, unit.name, unit.kind, busy[0][0], busy[-1][1], seconds, events, gated
            )
    return runs


def _exchange_runs(
    number: int, recorded: Recorded, units: Mapping[str, UnitRun], uses: Mapping[str, UnitRun]
) -> list[ExchangeRun]:
    """A step's exchanges, given its units' runs and the next step's uses of weights."""
    runs = []
    for exchanged in recorded.step.exchanges:
        weights = set(exchanged.weights)
        sources = [unit.name for unit in recorded.step.backward if weights & set(unit.variables)]
        made = [units[name] for name in sources if name in units]
        used = [uses[weight] for weight in exchanged.weights if weight in uses]
        run = ExchangeRun(
            step=number,
            name=exchanged.name,
            weights=exchanged.weights,
            num_bytes=exchanged.num_bytes,
            start=0.0,
            end=0.0,
            after=max(made, key=lambda unit: unit.end).name if made else None,
            before=min(used, key=lambda unit: unit.start).name if used else None,
        )
        events = recorded.of_ops([exchanged.op])
        runs += [replace(run, start=event.start, end=event.end) for event in events]
    return sorted(runs, key=lambda run: run.start)


def _first_uses(step: TracedStep, runs: Mapping[str, UnitRun]) -> dict[str, UnitRun]:
    """Finds, for each weight, the run of its forward unit, or else of the first dependent one."""
    uses: dict[str, UnitRun] = {}
    for unit in step.forward:
        waiting = {unit.name}
        while waiting and not any(name in runs for name in waiting):
            waiting = {other.name for other in step.forward if waiting & other.needs}
        found = [runs[name] for name in waiting if name in runs]
        if found:
            first = min(found, key=lambda run: run.start)
            uses.update(dict.fromkeys(unit.variables, first))
    return uses
