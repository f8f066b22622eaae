"""Walks and sorts the ops of a TensorFlow graph that is being traced, and adds control edges."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import tensorflow as tf

from ooodist.compat.tensorflow_graph import add_control_input

Group = TypeVar("Group", bound=Hashable)


def ancestors(ops: Iterable[tf.Operation]) -> list[tf.Operation]:
    """These ops and all that must run before them, in an order in which they can run.

    Control inputs count like data: some gradient functions recompute forward values under a
    control edge from the incoming gradient.
    """
    done: dict[tf.Operation, None] = {}
    entered: set[tf.Operation] = set()
    # Depth first, without recursion: graphs are thousands of ops deep.
    stack = [(op, False) for op in ops]
    while stack:
        op, expanded = stack.pop()
        if expanded:
            done[op] = None
        elif op not in entered:
            entered.add(op)
            stack.append((op, True))
            stack.extend((producer, False) for producer in producers(op))
    return list(done)


def producers(op: tf.Operation) -> list[tf.Operation]:
    """The ops that ``op`` waits for: those of its data inputs and its control inputs."""
    return [tensor.op for tensor in op.inputs] + list(op.control_inputs)


class Subgraph:
    """A set of ops with the edges between them.

    Ops with side effects are also chained in the order in which they were created, because
    TensorFlow chains them so (automatic control dependencies) when the trace ends.

    Attributes:
        ops: the ops, in an order in which they can run.
        predecessors, successors: for each op, its neighbors within the set.
    """

    def __init__(self, ops: Sequence[tf.Operation]) -> None:
        members = set(ops)
        self.predecessors: dict[tf.Operation, list[tf.Operation]] = {
            op: list(dict.fromkeys(p for p in producers(op) if p in members)) for op in ops
        }
        effects = [op for op in _by_creation(ops) if has_side_effects(op)]
        for first, second in itertools.pairwise(effects):
            if first not in self.predecessors[second]:
                self.predecessors[second].append(first)
        self.successors: dict[tf.Operation, list[tf.Operation]] = {op: [] for op in ops}
        for op, before in self.predecessors.items():
            for producer in before:
                self.successors[producer].append(op)
        self.ops = sort_topologically(self.predecessors, self.successors)


def _by_creation(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    position = {op: index for index, op in enumerate(ops[0].graph.get_operations())} if ops else {}
    return sorted(ops, key=position.__getitem__)


def has_side_effects(op: tf.Operation) -> bool:
    """Whether an op changes state, or gives a different result each time it runs."""
    # A read of a variable is "stateful" too, but reads commute.
    reads_only = op.type in ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "Placeholder")
    return bool(op.op_def.is_stateful) and not reads_only


def sort_topologically(
    predecessors: Mapping[Group, Iterable[Group]], successors: Mapping[Group, Iterable[Group]]
) -> list[Group]:
    """The nodes in an order in which each comes after its predecessors.

    Among nodes that could come next, the one that is listed first in ``predecessors`` does.

    Raises:
        ValueError: there is a cycle.
    """
    nodes = list(predecessors)
    rank = {node: index for index, node in enumerate(nodes)}
    missing = {node: len(list(before)) for node, before in predecessors.items()}
    ready = [rank[node] for node, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[Group] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for follower in successors[node]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, rank[follower])
    if len(order) != len(nodes):
        raise ValueError(f"cycle among {[n for n in nodes if missing[n] > 0][:5]}")
    return order


def sort_groups(subgraph: Subgraph, group_of: Mapping[tf.Operation, Group]) -> list[Group]:
    """The groups of a partition in an order in which they can run; ties by first op.

    Args:
        subgraph: the graph.
        group_of: the group of each op; ops without one are left out.

    Raises:
        ValueError: two groups depend on each other.
    """
    before: dict[Group, set[Group]] = {}
    after: dict[Group, set[Group]] = {}
    for op in subgraph.ops:
        if op in group_of:
            group = group_of[op]
            before.setdefault(group, set())
            after.setdefault(group, set())
            for producer in subgraph.predecessors[op]:
                other = group_of.get(producer, group)
                if other != group:
                    before[group].add(other)
                    after[other].add(group)
    return sort_topologically(before, after)


def ops_of(gradient: tf.Tensor | tf.IndexedSlices | None) -> list[tf.Operation]:
    """The ops that produce a gradient (several for IndexedSlices, none for None)."""
    if gradient is None:
        return []
    if isinstance(gradient, tf.IndexedSlices):
        parts = (gradient.values, gradient.indices, gradient.dense_shape)
        return [tensor.op for tensor in parts if tensor is not None]
    return [gradient.op]


def num_bytes(tensor: tf.Tensor | tf.TensorSpec | tf.Variable | tf.IndexedSlices | None) -> int:
    """A tensor's bytes: all rows for IndexedSlices, 0 where the shape is unknown."""
    if tensor is None:
        return 0
    return int((tensor.shape.num_elements() or 0) * tensor.dtype.size)


def add_control_edges(op: tf.Operation, after: Sequence[tf.Operation]) -> int:
    """Makes ``op`` wait for those ops of ``after`` that it does not wait for already.

    Returns:
        the number of edges added.
    """
    direct = set(producers(op))
    new = [producer for producer in after if producer not in direct]
    for producer in new:
        add_control_input(op, producer)
    return len(new)
