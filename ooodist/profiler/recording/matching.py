"""Matches recorded ops to traced steps.

A recording is a list of op events, a trace a list of steps with their units. They are matched by
op names within one call of the traced function. TensorFlow optimizes a graph before it runs: it
fuses ops, folds constants, adds and renames copies. So not every op of a unit is found, but the
heavy ones are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ooodist.graph.ops import ancestors
from ooodist.profiler.recording.xplane import OpEvent
from ooodist.step.backward import TracedStep

EventsOfOp = dict[str, list[OpEvent]]

# Ops that call functions: the ops that these run have names below their own.
_CALLS = frozenset(
    {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}
    | {"PartitionedCall", "StatefulPartitionedCall"}
)

# What TensorFlow inserts into the name of an op that it has rewritten, such as a matrix product
# with a fused transposition: dense/ArithmeticOptimizer/FoldTransposeIntoMatMul_MatMul.
_REWRITTEN = re.compile(r"ArithmeticOptimizer/[A-Za-z]+_")


@dataclass(frozen=True)
class Recorded:
    """One recorded step.

    Attributes:
        step: the traced step.
        events: the op events of the function call that the step was part of, by op name.
    """

    step: TracedStep
    events: EventsOfOp

    def of_ops(self, ops: Sequence[tf.Operation]) -> list[OpEvent]:
        """The events of these ops, sorted by start."""
        found = [event for op in ops for event in self.events.get(op.name, ())]
        for op in ops:
            if op.type in _CALLS:
                inner = [name for name in self.events if name.startswith(op.name + "/")]
                found += [event for name in inner for event in self.events[name]]
        return sorted(found, key=lambda event: event.start)


def match_steps(events: Sequence[OpEvent], steps: Sequence[TracedStep]) -> list[Recorded]:
    """The steps that were recorded, in the order in which they ran.

    Args:
        events: from :func:`ooodist.profiler.recording.xplane.read_op_events`.
        steps: the traced steps: ``backward.steps`` of the strategy. Steps that were not recorded
            (other batch shapes) are skipped, and so are events of other functions.
    """
    traces: dict[tf.Graph, list[TracedStep]] = {}  # by launch
    for step in steps:
        if step.backward:
            traces.setdefault(step.backward[0].ops[0].graph, []).append(step)
    names = {
        graph: [op.name for step in trace for unit in step.backward for op in unit.ops]
        for graph, trace in traces.items()
    }
    recorded = []
    for events_of_op in _executions(events):
        found = {
            graph: sum(name in events_of_op for name in backward)
            for graph, backward in names.items()
        }
        # A trace of fewer steps can have the names of the first steps of a longer one.
        best = max(traces, key=lambda g: (found[g], -len(names[g])), default=None)
        if best is not None and found[best]:
            recorded += [Recorded(step, events_of_op) for step in traces[best]]
    return recorded


def telling_ops(step: TracedStep) -> dict[str, list[tf.Operation]]:
    """Finds, for each unit of a step, the ops that tell when it ran.

    Left out are forward ops that TensorFlow may run at any time, long before or after the rest
    of the layer: those that only read and cast weights, and those for which the backward pass
    does not wait (the value of the loss).
    """
    awaited = set(ancestors(op for unit in step.backward for op in unit.ops))
    from_weights: set[tf.Operation] = set()
    result = {}
    for unit in (*step.forward, *step.backward):
        telling = []
        for op in unit.ops:
            sources = [tensor.op for tensor in op.inputs]
            if op.type == "ReadVariableOp" or (
                sources and all(s in from_weights or s.type == "Const" for s in sources)
            ):
                from_weights.add(op)
            elif op in awaited:
                telling.append(op)
        result[unit.name] = telling or list(unit.ops)
    return result


def _executions(events: Sequence[OpEvent]) -> list[EventsOfOp]:
    """The events of each function call, by op name; calls in the order of their start."""
    executions: dict[int, EventsOfOp] = {}
    for event in events:
        name = _REWRITTEN.sub("", event.name)
        executions.setdefault(event.execution, {}).setdefault(name, []).append(event)
    return list(executions.values())
