"""Assigns each op of a traced step to a unit, to the update of some weights, or to neither.

Units hold the ops on the way from a weight to a loss and back. The ops around them belong to what
they serve::

    dropout's random numbers  ->  the F unit that they are made for
    recomputed values         ->  the backward unit that they are made for
    Adam's moments            ->  the update of the weight
    a norm over all gradients ->  the update of all weights
    input, metrics            ->  neither
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

from ooodist.graph.ops import producers
from ooodist.step.backward import TracedStep

# The name of a unit, or the names of the weights that cannot be updated without the op.
Owner: TypeAlias = str | frozenset[str]
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


@dataclass(frozen=True)
class Weight:
    """A trained weight of a traced step.

    Attributes:
        name: its name in the units.
        gradient: its gradient before the exchange.
        handle: the resource through which the weight enters the graph.
    """

    name: str
    gradient: tf.Tensor | tf.IndexedSlices
    handle: tf.Tensor


def find_owners(step: TracedStep, weights: Sequence[Weight]) -> dict[tf.Operation, Owner]:
    """The owner of each op of a step; ops without one are left out.

    Args:
        step: the only traced step of a graph that is complete.
        weights: the weights that it trains.
    """
    units = (*step.forward, *step.backward)
    owner_of: dict[tf.Operation, Owner] = {op: unit.name for unit in units for op in unit.ops}
    ops = step.backward[0].ops[0].graph.get_operations()  # each after those that it needs
    owner_of |= _updates([op for op in ops if op not in owner_of], weights)

    # Ops before the first forward op are input, or (with accumulate) another batch's pass. (The
    # placeholders of weights stand where the weight is first used, possibly there.)
    forward = {op for unit in step.forward for op in unit.ops if op.type != "Placeholder"}
    first = next(index for index, op in enumerate(ops) if op in forward)
    place = {unit.name: index for index, unit in enumerate(units)}
    for op in reversed(ops[first:]):
        if op not in owner_of:
            users = [user for output in op.outputs for user in output.consumers()]
            served = [owner_of[user] for user in users if owner_of.get(user) in place]
            if served:
                owner_of[op] = min(served, key=lambda name: place[str(name)])
    return owner_of


def _updates(
    around: Sequence[tf.Operation], weights: Sequence[Weight]
) -> dict[tf.Operation, frozenset[str]]:
    """Finds, for each op outside the units, the weights that cannot be updated without it."""
    weight_of = {weight.handle.op: weight.name for weight in weights}
    needed = dict.fromkeys(around, frozenset[str]())
    for op in reversed(around):
        if op.op_def.is_stateful and op.type not in _READS:
            needed[op] |= {weight_of[t.op] for t in op.inputs if t.op in weight_of}
        for producer in producers(op):
            if producer in needed:
                needed[producer] |= needed[op]
    return {op: names for op, names in needed.items() if names}
