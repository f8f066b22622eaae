"""Units: the groups of ops of a traced training step that are scheduled as one.

A backward pass computes two things per layer: the gradient that is handed to the layer below
(dX) and the gradients of the layer's own weights (dW). Which op does which is read off the
graph, never off names or op types, by one rule:

    S(op) = the weights whose gradients need op.     Ops with the same S form one unit.

For three dense layers (A, B, C from the input up) with biases a, b, c::

    loss --> dy_C --> dX of C, relu' = dy_B --> dX of B, relu' = dy_A
              |                         |                         |
              +--> dW_C                 +--> dW_B                 +--> dW_A
              +--> db_C                 +--> db_B                 +--> db_A

    S(dy_C) = {A,a,B,b,C,c}    S(dX of C) = S(dy_B) = {A,a,B,b}    S(dX of B) = S(dy_A) = {A,a}
    S(dW_C) = {C}              S(dW_B) = {B}                       S(dW_A) = {A}

An op that only one weight needs belongs to a dW unit: it may run at any later time. All others
are the dX path. An op that cannot be split needs no special case: a fused batch-norm gradient
yields dX, dgamma and dbeta in one op, which other weights need too, so it is on the dX path.

Why the units can always be run one after the other: along an edge S can only shrink (who needs
the consumer needs the producer), so two different units never wait for each other.

Kernel and bias of a layer read the same output gradient and form one dW unit.

A weight with several uses (tied, shared) has its dW cut further, by how far down the dX path
each part must wait, so that an early part need not be held back by the last.

Forward units mirror this: ops that depend on the same weights form one unit.

Source: Oh, Lee, Kim, Seo, "Out-of-order backprop: an effective scheduling technique for deep
learning", EuroSys 2022, where the split is made by hand for each layer type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import tensorflow as tf

from ooodist.graph import ops as graphs

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None
Kind = Literal["F", "dX", "dW"]


@dataclass(frozen=True, eq=False)
class Unit:
    """A group of ops that is scheduled as one.

    Attributes:
        name: unique among the units of a step: ``dW:dense`` (kernel and bias of a layer),
            ``dW:embedding/embeddings`` (one weight), ``dX:dense`` (completes the gradient of
            this layer's output).
        kind: ``F``, ``dX`` or ``dW``.
        variables: F: the weights that enter here. dX and dW: the weights whose gradient is
            complete when this unit has run.
        gradient_bytes: bytes of the gradients of ``variables``; 0 for F.
        ops: the ops, in an order in which they can run.
        needs: names of the units of the same pass that must run before this one.
        layer: dW: how many dX units must run before it (a kernel and its bias have the same
            number); dX: its own place on the dX path, from 1; F: 0.
    """

    name: str
    kind: Kind
    variables: tuple[str, ...]
    gradient_bytes: int
    ops: tuple[tf.Operation, ...] = field(repr=False)
    needs: frozenset[str] = field(repr=False)
    layer: int


def find_backward_units(
    seeds: Sequence[tf.Tensor], gradients: Sequence[Gradient], names: Sequence[str]
) -> tuple[Unit, ...]:
    """Finds the dX and dW units of one traced step.

    Args:
        seeds: where the backward pass starts, in a graph under construction: the tensors given
            as ``output_gradients`` to ``tape.gradient``, of the shapes of the losses.
        gradients: what ``tape.gradient`` returned, of any shape; None where no loss depends on
            a weight.
        names: a unique name for each of ``gradients``, usually the variable's path.

    Returns:
        the units in baseline order: down the dX path, and after each dX unit the dW units that
        waited for it. Together they hold each op that depends on a seed and that some gradient
        needs. (What a gradient needs only of the forward pass, such as shapes, is in no unit.)

    Raises:
        ValueError: ``names`` do not match ``gradients``, or are not unique.
    """
    if len(names) != len(gradients) or len(set(names)) != len(names):
        raise ValueError(f"{len(gradients)} gradients need as many unique names, got {names}")
    gradient_ops = [graphs.ops_of(gradient) for gradient in gradients]
    needed = graphs.ancestors(op for ops in gradient_ops for op in ops)
    backward = {seed.op for seed in seeds}
    for op in needed:
        if any(producer in backward for producer in graphs.producers(op)):
            backward.add(op)
    graph = graphs.Subgraph([op for op in needed if op in backward])

    needed_by = _needed_by(graph, gradient_ops)
    group_of = _join_shared_inputs(graph, _groups(graph, needed_by))
    # Down the dX path; after each dX unit the dW units that waited for it.
    groups = sorted(graphs.sort_groups(graph, group_of), key=lambda g: (g.layer, g.kind == "dW"))

    # The unit that completes a gradient is the last one that has a part of it. (A gradient that
    # does not depend on the loss, such as a regularizer's, may be in none.)
    position = {group: index for index, group in enumerate(groups)}
    completes: dict[_Group, list[int]] = {group: [] for group in groups}
    for index, ops in enumerate(gradient_ops):
        parts = [group_of[op] for op in ops if op in group_of]
        if parts:
            completes[max(parts, key=position.__getitem__)].append(index)

    labels = _labels(groups, completes, names)
    members: dict[_Group, list[tf.Operation]] = {group: [] for group in groups}
    needs: dict[_Group, set[str]] = {group: set() for group in groups}
    for op in graph.ops:
        group = group_of[op]
        members[group].append(op)
        needs[group].update(labels[group_of[producer]] for producer in graph.predecessors[op])
    return tuple(
        Unit(
            name=labels[group],
            kind=group.kind,
            variables=tuple(names[index] for index in completes[group]),
            gradient_bytes=sum(graphs.num_bytes(gradients[index]) for index in completes[group]),
            ops=tuple(members[group]),
            needs=frozenset(needs[group] - {labels[group]}),
            layer=group.layer,
        )
        for group in groups
    )


class _Group(NamedTuple):
    """The key of a unit that is being collected; ``needed_by`` is S as a bit mask."""

    kind: Kind
    layer: int
    needed_by: int


def _needed_by(
    graph: graphs.Subgraph, gradient_ops: Sequence[Sequence[tf.Operation]]
) -> dict[tf.Operation, int]:
    """S(op) as a bit mask: bit i is set if the i-th gradient needs op."""
    needed_by = dict.fromkeys(graph.ops, 0)
    for index, ops in enumerate(gradient_ops):
        for op in ops:
            if op in needed_by:
                needed_by[op] |= 1 << index
    for op in reversed(graph.ops):
        for consumer in graph.successors[op]:
            needed_by[op] |= needed_by[consumer]
    return needed_by


def _groups(
    graph: graphs.Subgraph, needed_by: Mapping[tf.Operation, int]
) -> dict[tf.Operation, _Group]:
    path = {op: mask for op, mask in needed_by.items() if mask.bit_count() > 1}
    place = {mask: index for index, mask in enumerate(graphs.sort_groups(graph, path), start=1)}
    group_of: dict[tf.Operation, _Group] = {}
    for op in graph.ops:
        mask = needed_by[op]
        if mask in place:
            group_of[op] = _Group("dX", place[mask], mask)
        else:
            waits = (group_of[producer].layer for producer in graph.predecessors[op])
            group_of[op] = _Group("dW", max(waits, default=0), mask)
    return group_of


def _join_shared_inputs(
    graph: graphs.Subgraph, group_of: Mapping[tf.Operation, _Group]
) -> dict[tf.Operation, _Group]:
    """Joins the dW groups of a layer that read the same output gradient: kernel and bias.

    Nothing is gained by running them apart, and oneDNN computes both in one op: a control edge
    between the two would then be a cycle. An early part of a weight with several uses is joined
    only with other early parts, so that no dW unit that completes a gradient needs another.
    """
    last: dict[int, int] = {}
    for group in group_of.values():
        last[group.needed_by] = max(group.layer, last.get(group.needed_by, 0))
    early = {group for group in group_of.values() if group.layer < last[group.needed_by]}
    joined: dict[_Group, _Group] = {}

    def root(group: _Group) -> _Group:
        while group in joined:
            group = joined[group]
        return group

    for op in graph.ops:
        if group_of[op].kind == "dW":
            continue
        readers: dict[tuple[int, bool], set[_Group]] = {}
        for user in graph.successors[op]:
            group = group_of[user]
            if group.kind == "dW":
                readers.setdefault((group.layer, group in early), set()).add(root(group))
        for (layer, _), same in readers.items():
            if len(same) > 1:
                whole = _Group("dW", layer, sum(group.needed_by for group in same))
                joined.update(dict.fromkeys(same, whole))
    return {op: root(group) for op, group in group_of.items()}


def _labels(
    groups: Sequence[_Group], completes: Mapping[_Group, Sequence[int]], names: Sequence[str]
) -> dict[_Group, str]:
    path = [group for group in groups if group.kind == "dX"]
    labels: dict[_Group, str] = {}
    used: dict[str, int] = {}
    for group in groups:
        own = group.needed_by
        if group.kind == "dX":
            # The layer whose output gradient this is: what it reaches and no later dX passes on.
            passed_on = 0
            for later in path[group.layer :]:
                if later.needed_by & own == later.needed_by:
                    passed_on |= later.needed_by
            own = own & ~passed_on or own
        label = _label([name for index, name in enumerate(names) if own >> index & 1])
        name = f"{group.kind}:{label}"
        if group.kind == "dW" and not completes[group]:
            name += f"@{group.layer}"  # an early part of a weight that has several uses
        used[name] = used.get(name, 0) + 1
        labels[group] = name if used[name] == 1 else f"{name}#{used[name]}"
    return labels


def _label(variables: Sequence[str]) -> str:
    """``dense/kernel`` for one weight, ``dense`` for the weights of one layer."""
    if len(variables) == 1:
        return variables[0]
    layers = dict.fromkeys(variable.rpartition("/")[0] or variable for variable in variables)
    first, *others = layers
    return first + (f"+{len(others)}" if others else "")
