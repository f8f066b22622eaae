"""How much memory ops hold of what they make for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from ooodist.graph.buffers import buffer_of, workspace_bytes

FLOATS = 100
BYTES = 4 * FLOATS


def workspace(
    function: Callable[[tf.Tensor], Sequence[tf.Tensor]], keep: bool = True
) -> tuple[int, list[str]]:
    """Of a function of one vector, and the types of its ops."""
    graph = tf.function(function).get_concrete_function(tf.TensorSpec((FLOATS,))).graph
    ops = graph.get_operations()
    kept = graph.outputs if keep else ()
    return workspace_bytes(ops, kept), [op.type for op in ops]


def test_what_is_handed_on_has_no_buffer_of_its_own() -> None:
    with tf.Graph().as_default():
        made = tf.exp(tf.zeros((4, 3)))
        again = tf.reshape(tf.identity(tf.identity_n([tf.zeros(2), made])[1]), (12,))
        assert buffer_of(again) == (made.op, 0)
        assert buffer_of(made) == (made.op, 0)


def test_a_chain_holds_two_at_a_time() -> None:
    def chain(x: tf.Tensor) -> list[tf.Tensor]:
        for _ in range(5):
            x = tf.reshape(tf.math.cumsum(x), (FLOATS,))
        return [x]

    # An op reads one and makes the other; what comes out at the end does not count.
    assert workspace(chain)[0] == 2 * BYTES
    assert workspace(lambda x: [tf.math.cumsum(x)])[0] == 0
    assert workspace(lambda x: [tf.math.cumsum(x)], keep=False)[0] == BYTES


def test_what_nobody_else_reads_is_written_over() -> None:
    def chain(x: tf.Tensor) -> list[tf.Tensor]:
        for _ in range(5):
            x = tf.nn.relu(tf.reshape(tf.exp(x), (10, 10)))
        return [x]

    assert workspace(chain)[0] == 0  # it becomes what comes out
    assert workspace(chain, keep=False)[0] == BYTES

    def both(x: tf.Tensor) -> list[tf.Tensor]:
        first = tf.math.cumsum(x)
        return [tf.exp(first), tf.math.cumsum(first)]

    # The first is read twice: the exponential, which runs first, has a place of its own.
    assert workspace(both)[0] == BYTES


def test_what_comes_out_is_not_written_over() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (FLOATS,))
        kept = tf.math.cumsum(x)
        other = tf.math.cumsum(tf.math.cumsum(tf.math.cumsum(x)))
        last = tf.math.cumsum(tf.exp(kept))
    # Of the sums two at a time; the exponential, which has a place of its own, is made later.
    assert workspace_bytes(graph.get_operations(), [kept, other, last]) == 2 * BYTES


def test_what_is_read_late_is_held_until_then() -> None:
    def late(x: tf.Tensor) -> list[tf.Tensor]:
        first = [tf.exp(x + float(n)) for n in range(4)]  # all four are there at the end
        return [tf.math.cumsum(tf.add_n(first))]

    assert workspace(late)[0] == 4 * BYTES  # one of them becomes the sum


def test_what_is_there_anyway_does_not_count() -> None:
    variable = tf.Variable(tf.ones(FLOATS))
    held, types = workspace(lambda x: [tf.math.cumsum(tf.maximum(x, 2.0) + variable)])
    assert {"ReadVariableOp", "Const", "Placeholder"} <= set(types)
    assert held == BYTES  # of the maximum, then of the sum


def test_what_nobody_reads_is_held_while_it_is_made() -> None:
    def split(x: tf.Tensor) -> list[tf.Tensor]:
        first, *_ = tf.split(tf.exp(x), 4)
        return [tf.math.cumsum(first)]

    assert workspace(split)[0] == BYTES + 4 * (BYTES // 4)
