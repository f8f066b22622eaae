"""Forward units: the ops of a step's forward pass, cut where a weight enters.

The mirror image of units.py: R(op) = the weights that op depends on; ops with the same R form one
unit. Along an edge R can only grow, so the units can be run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ooodist.graph import ops as graphs
from ooodist.graph.units import Unit


def find_forward_units(
    target: tf.Tensor | Sequence[tf.Tensor], weights: Sequence[tf.Tensor], names: Sequence[str]
) -> tuple[Unit, ...]:
    """Finds the F units of one traced step.

    Args:
        target: the loss (or losses), in a graph under construction.
        weights: for each weight the tensor through which it enters the graph: the captured
            resource handle (shape ()) of a variable.
        names: a unique name for each of ``weights``.

    Returns:
        the units in an order in which they can run. Ops that depend on no weight (the input
        pipeline, constants) are in no unit.

    Raises:
        ValueError: ``names`` do not match ``weights``, or are not unique.
    """
    if len(names) != len(weights) or len(set(names)) != len(names):
        raise ValueError(f"{len(weights)} weights need as many unique names, got {names}")
    targets: list[tf.Tensor] = tf.nest.flatten(target)
    graph = graphs.Subgraph(graphs.ancestors(tensor.op for tensor in targets))
    group_of = _groups(graph, {weight.op: 1 << i for i, weight in enumerate(weights)})

    groups = graphs.sort_groups(graph, group_of)
    members: dict[int, list[tf.Operation]] = {mask: [] for mask in groups}
    before: dict[int, set[int]] = {mask: set() for mask in groups}
    for op in graph.ops:
        if op in group_of:
            members[group_of[op]].append(op)
            needed = {group_of[p] for p in graph.predecessors[op] if p in group_of}
            before[group_of[op]] |= needed - {group_of[op]}

    labels: dict[int, str] = {}
    used: dict[str, int] = {}
    entered = 0
    units = []
    for mask in groups:
        new = [name for index, name in enumerate(names) if (mask & ~entered) >> index & 1]
        entered |= mask
        name = "F:" + ((new[0].rpartition("/")[0] or new[0]) if new else "join")
        used[name] = used.get(name, 0) + 1
        labels[mask] = name if used[name] == 1 else f"{name}#{used[name]}"
        needs = frozenset(labels[other] for other in before[mask])
        units.append(Unit(labels[mask], "F", tuple(new), 0, tuple(members[mask]), needs, 0))
    return tuple(units)


def _groups(graph: graphs.Subgraph, bit_of: dict[tf.Operation, int]) -> dict[tf.Operation, int]:
    """R(op) as a bit mask, for each op that depends on a weight."""
    depends: dict[tf.Operation, int] = {}
    has_data: dict[tf.Operation, bool] = {}  # depends on more than weights and constants
    for op in graph.ops:
        before = graph.predecessors[op]
        depends[op] = bit_of.get(op, 0)
        has_data[op] = not before and op not in bit_of and op.type != "Const"
        for producer in before:
            depends[op] |= depends[producer]
            has_data[op] = has_data[op] or has_data[producer]

    # Reading and casting a weight belongs to the unit that uses it first, not to one of its own.
    group_of = {op: mask for op, mask in depends.items() if mask}
    for op in reversed(graph.ops):
        if op in group_of and not has_data[op]:
            users = [group_of[user] for user in graph.successors[op]]
            group_of[op] = min(users, key=int.bit_count, default=group_of[op])
    return group_of
