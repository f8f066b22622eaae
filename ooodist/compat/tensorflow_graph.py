"""What TensorFlow keeps of a function, and of the graph that is traced for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction


def add_control_input(op: tf.Operation, producer: tf.Operation) -> None:
    """Makes an op of a graph under construction wait for another: ``_add_control_input``.

    The public ``tf.control_dependencies`` is for ops that are still to be made; the gradient
    functions of TensorFlow have made these.
    """
    op._add_control_input(producer)


def call_flat(function: ConcreteFunction, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """What a function of tensors returns, which is a list of tensors: ``_call_flat``.

    Called as any function, it takes 8 microseconds to look at an argument, and a stage can have
    hundreds; so this looks at none.
    """
    results: list[tf.Tensor] = function._call_flat(list(tensors), function.captured_inputs)
    return results


def is_variable(source: Any) -> bool:
    """Whether it is a variable, of Keras or TensorFlow, and no tensor: these have no ``handle``."""
    return hasattr(source, "handle")


def handle_of(variable: Any) -> tf.Tensor:
    """The resource that a variable, of Keras or TensorFlow, stands for: ``handle``.

    Undocumented in both. Ops of a graph name a variable by it alone.
    """
    return variable.handle


def capture(tensor: tf.Tensor) -> tf.Tensor:
    """What stands for a tensor from outside in the function that is traced at present.

    ``FuncGraph.capture``: graphs of functions are public, their class is not.
    """
    return tf.compat.v1.get_default_graph().capture(tensor)


def captures_of(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """The tensors that a traced graph has from outside, by the names that they have in it.

    ``FuncGraph.captures``, pairs of outer and inner tensor.
    """
    return {inner.name: outer for outer, inner in graph.captures}


def variables_of(graph: tf.Graph) -> Sequence[tf.Variable]:
    """The variables that a traced graph uses: ``FuncGraph.variables``."""
    used: Sequence[tf.Variable] = graph.variables
    return used


def run_independently(op: tf.Operation) -> bool:
    """Has an op run in each call of the function that is traced, chained to no other op.

    ``FuncGraph.experimental_acd_manager.run_independently``: TensorFlow's own, for its exchanges;
    not public.

    Returns:
        False if the graph is of no function, and nothing was done.
    """
    manager = getattr(op.graph, "experimental_acd_manager", None)
    if manager is None:
        return False
    manager.run_independently(op)
    return True
