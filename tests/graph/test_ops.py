"""Walking a graph."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.graph.ops import (
    Subgraph,
    add_control_edges,
    ancestors,
    num_bytes,
    ops_of,
    sort_groups,
    sort_topologically,
)


def test_an_added_edge_is_obeyed() -> None:
    log = tf.Variable([0.0, 0.0], shape=tf.TensorShape(None), trainable=False)

    @tf.function(autograph=False)
    def step() -> None:
        # Two ops with a visible order: the first to run writes 1.
        first = tf.py_function(lambda: log.assign([1.0, log[1]]).numpy()[0], [], tf.float32)
        second = tf.py_function(lambda: log.assign([log[0], log[0] + 1]).numpy()[0], [], tf.float32)
        add_control_edges(second.op, [first.op])

    step()
    assert log.numpy().tolist() == [1.0, 2.0]


def test_an_edge_that_is_there_already_is_not_added() -> None:
    with tf.Graph().as_default():
        a = tf.constant(1.0) + tf.random.stateless_uniform([], [1, 2])
        b = a * 2.0
        assert add_control_edges(b.op, [a.op]) == 0
        c = tf.random.stateless_uniform([], [1, 2])
        assert add_control_edges(b.op, [c.op]) == 1
        assert add_control_edges(b.op, [c.op]) == 0


def test_ancestors_come_in_an_order_in_which_they_can_run() -> None:
    with tf.Graph().as_default():
        a = tf.random.stateless_uniform([], [1, 2])
        b = tf.random.stateless_uniform([], [1, 2])
        with tf.control_dependencies([b]):
            c = tf.identity(a)
        tf.random.stateless_uniform([], [1, 2])  # not an ancestor
        found = ancestors([c.op])
    assert set(found) == {c.op, *(op for op in found if op is not c.op)}
    assert {a.op, b.op, c.op} <= set(found)
    for op in found:
        for producer in [*(t.op for t in op.inputs), *op.control_inputs]:
            assert found.index(producer) < found.index(op)


def test_ancestors_of_a_deep_graph_need_no_recursion() -> None:
    with tf.Graph().as_default():
        x = tf.random.stateless_uniform([], [1, 2])
        for _ in range(3000):
            x = x + 1.0
        assert len(ancestors([x.op])) > 3000


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=60))
def test_topological_order_respects_edges_or_finds_the_cycle(pairs: list[tuple[int, int]]) -> None:
    forward = [(min(a, b), max(a, b)) for a, b in pairs if a != b]
    before = {n: [a for a, b in forward if b == n] for n in reversed(range(16))}
    after = {n: [b for a, b in forward if a == n] for n in range(16)}
    order = sort_topologically(before, after)
    assert sorted(order) == list(range(16))
    assert all(order.index(a) < order.index(b) for a, b in forward)
    if forward:
        a, b = forward[0]
        before[a].append(b)
        after[b].append(a)
        with pytest.raises(ValueError, match="cycle"):
            sort_topologically(before, after)


def test_groups_that_depend_on_each_other_are_refused() -> None:
    with tf.Graph().as_default():
        a = tf.random.stateless_uniform([], [1, 2])
        b = tf.identity(a)
        c = tf.identity(b)
        graph = Subgraph(ancestors([c.op]))
    assert sort_groups(graph, {a.op: "x", b.op: "y", c.op: "y"}) == ["x", "y"]
    with pytest.raises(ValueError, match="cycle"):
        sort_groups(graph, {a.op: "x", b.op: "y", c.op: "x"})


def test_bytes_and_ops_of_a_gradient() -> None:
    with tf.Graph().as_default():
        dense = tf.zeros([3, 5], tf.bfloat16)
        sparse = tf.IndexedSlices(tf.zeros([2, 5]), tf.constant([1, 4]), tf.constant([7, 5]))
        unknown = tf.compat.v1.placeholder(tf.float32, [None, 3])
    assert num_bytes(dense) == 30
    assert num_bytes(sparse) == 7 * 5 * 4
    assert num_bytes(None) == 0
    assert num_bytes(unknown) == 0
    assert ops_of(None) == []
    assert len(ops_of(sparse)) == 3
