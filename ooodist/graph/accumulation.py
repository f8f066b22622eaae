"""Adds gradients to accumulators, such that large ones do not wait in memory for each other.

All dW of a stage are ready to run at once, and TensorFlow runs what is ready first: it would
compute them all and then add them up. Here a large one is computed when the one before was added::

    left alone      dW1 dW2 dW3  add1 add2 add3       three gradients are kept
    here            dW1 add1  dW2 add2  dW3 add3      one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import tensorflow as tf

from ooodist.graph.buffers import LASTING, PASSING
from ooodist.graph.ops import add_control_edges, ancestors, num_bytes, ops_of
from ooodist.graph.units import Gradient

LARGE = 1 << 20  # bytes; small gradients, such as biases', run beside each other


def accumulate(gradients: Sequence[Gradient], accumulators: Sequence[tf.Variable]) -> None:
    """Adds gradients to their accumulators; no number depends on the order.

    Args:
        gradients: in the graph that is being traced; None where there is nothing to add.
        accumulators: one for each.
    """
    added = {
        number: _add(gradient, accumulator)
        for number, (gradient, accumulator) in enumerate(zip(gradients, accumulators, strict=True))
        if gradient is not None
    }
    needed = {number: ancestors(ops_of(gradients[number])) for number in added}
    users = Counter(op for ops in needed.values() for op in ops)
    graph = tf.compat.v1.get_default_graph()
    created = {op: place for place, op in enumerate(graph.get_operations())}
    before: list[tf.Operation] = []
    for number in sorted(added, key=lambda each: max(created[op] for op in needed[each])):
        # What several gradients need is computed once, before any of them.
        large = [op for op in needed[number] if users[op] == 1 and _is_large(op)]
        for op in large:
            add_control_edges(op, before)
        if large:
            before = [added[number]]


def _add(gradient: Gradient, accumulator: tf.Variable) -> tf.Operation:
    if isinstance(gradient, tf.IndexedSlices):
        return accumulator.scatter_add(gradient).op
    return accumulator.assign_add(gradient, read_value=False)


def _is_large(op: tf.Operation) -> bool:
    computes = op.type not in PASSING | LASTING
    return computes and any(num_bytes(tensor) >= LARGE for tensor in op.outputs)
