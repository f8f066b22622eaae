"""Updates large weights one after the other, so that their temporary values do not add up.

An optimizer computes several arrays of the size of a weight before it changes the weight. Left
alone, TensorFlow computes those of all weights at once, which can take as much memory as the
weights themselves.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from keras.optimizers import Optimizer

from ooodist.compat.attributes import replaced
from ooodist.graph.ops import has_side_effects, num_bytes

LARGE = 1 << 20  # bytes; small weights are updated beside each other


def one_after_the_other(optimizer: Optimizer) -> AbstractContextManager[None]:
    """Makes each update of a large weight that is traced in a block wait for the one before.

    No number changes.

    Args:
        optimizer: the one that updates weights, not one that wraps it.
    """
    plain = optimizer.update_step
    ended: list[tf.Operation] = []

    def update_step(gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        if num_bytes(variable) < LARGE:
            plain(gradient, variable, learning_rate)
            return
        graph = tf.compat.v1.get_default_graph()
        begin = len(graph.get_operations())
        with tf.control_dependencies(ended):
            plain(gradient, variable, learning_rate)
        ended[:] = [op for op in graph.get_operations()[begin:] if has_side_effects(op)]

    return replaced(optimizer, update_step=update_step)
