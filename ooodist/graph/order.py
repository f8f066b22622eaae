"""Orders of the backward units, and a function that imposes one on a graph being traced.

An order is a list of unit names. It is legal if it has every unit once and none before a unit
that it needs. For three layers (3 on top), as the compute stream sees them::

    baseline       dX3 dW3 dX2 dW2 dX1 dW1
    first_k, k=2   dX3 dW3 dX2 dX1 dW1 dW2
    first_k, k=3   dX3 dX2 dX1 dW1 dW2 dW3

(dXi completes the gradient of layer i's output.) With first_k the gradient that the next forward
pass needs first is also the first of the last k to be exchanged, after the dW of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from ooodist.errors import UserError
from ooodist.graph.light_ops import LIGHT_OPS
from ooodist.graph.ops import add_control_edges, producers
from ooodist.graph.units import Unit


def carries_edges(unit: Unit) -> bool:
    """Whether a unit has an op that can carry control edges; light ops cannot."""
    return any(op.type not in LIGHT_OPS for op in unit.ops)


def baseline_order(units: Sequence[Unit]) -> list[str]:
    """The baseline: from the loss down, each dX followed by the dW of its layer."""
    return [unit.name for unit in units]


def movable_layers(units: Sequence[Unit]) -> list[list[str]]:
    """The dW units that first_k can defer, by layer, from the input up.

    A layer is the dW units that wait for the same dX unit, such as a kernel and its bias. One of
    light ops only is not worth moving. An early part of a weight that has several uses completes
    nothing and stays where it is.
    """
    own = [unit for unit in units if unit.kind == "dW" and unit.variables and carries_edges(unit)]
    layers = sorted({unit.layer for unit in own}, reverse=True)
    return [[unit.name for unit in own if unit.layer == layer] for layer in layers]


def check_order(units: Sequence[Unit], order: Sequence[str]) -> None:
    """Checks that an order is legal.

    Raises:
        UserError: a unit is missing, unknown, listed twice, or comes before one it needs. The
            message names the units.
    """
    known = {unit.name: unit for unit in units}
    position: dict[str, int] = {}
    for name in order:
        if name not in known:
            raise UserError(f"order: there is no unit {name!r}; the units are {sorted(known)}")
        if name in position:
            raise UserError(f"order: unit {name!r} stands in it twice; name each unit once")
        position[name] = len(position)
    missing = [name for name in known if name not in position]
    if missing:
        raise UserError(f"order: units {missing} are missing; name each unit once")
    for unit in units:
        for needed in sorted(unit.needs):
            if position[needed] > position[unit.name]:
                raise UserError(
                    f"order: {unit.name!r} stands before {needed!r}, whose result it needs "
                    f"(a cycle); move {unit.name!r} behind {needed!r}"
                )


def impose_order(units: Sequence[Unit], order: Sequence[str], at_a_time: int = 1) -> int:
    """Makes the units run in the given order, by control edges.

    A unit waits for all units before it except the last ``at_a_time - 1``: edges lead from their
    last heavy ops to its first ones. A unit of light ops only (see LIGHT_OPS) runs as soon as its
    data is there. One at a time, and two at a time::

        a a a b c c c c d d        a a a c c c c
                                   b     d d

    Numbers do not change: no op is added, removed or altered. XLA drops control edges, so the
    function being traced must not be compiled with ``jit_compile=True``.

    Args:
        units: the backward units, in a graph that is still being traced.
        order: their names.
        at_a_time: how many units may run at a time, if their data dependencies allow it.

    Returns:
        the number of control edges that were added.

    Raises:
        UserError: the order is not legal (see :func:`check_order`).
    """
    check_order(units, order)
    known = {unit.name: unit for unit in units}
    added = 0
    ended: list[list[tf.Operation]] = []  # for each unit so far, its last heavy ops
    for name in order:
        first, ends = _ends(known[name])
        if first:
            # The last of these have waited for all before them.
            before = ended[: max(0, len(ended) - at_a_time + 1)][-at_a_time:]
            awaited = list(itertools.chain.from_iterable(before))
            added += sum(add_control_edges(op, awaited) for op in first)
            ended.append(ends)
    return added


def _ends(unit: Unit) -> tuple[list[tf.Operation], list[tf.Operation]]:
    """The heavy ops that start a unit (wait for no other of it), and those that end it."""
    inside = set(unit.ops)
    heavy = {op for op in unit.ops if op.type not in LIGHT_OPS}
    waits: set[tf.Operation] = set()  # ops that wait for a heavy op of this unit
    for op in unit.ops:
        before = [producer for producer in producers(op) if producer in inside]
        if any(producer in heavy or producer in waits for producer in before):
            waits.add(op)
    feeds: set[tf.Operation] = set()  # ops that a heavy op of this unit waits for
    for op in reversed(unit.ops):
        if op in heavy or op in feeds:
            feeds.update(producer for producer in producers(op) if producer in inside)
    first = [op for op in unit.ops if op in heavy and op not in waits]
    return first, [op for op in unit.ops if op in heavy and op not in feeds]
