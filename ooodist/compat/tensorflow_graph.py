"""Private interfaces of TensorFlow's functions and of the graphs that are traced for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction


def add_control_input(op: tf.Operation, producer: tf.Operation) -> None:
    """Makes an op of a graph under construction wait for another: ``_add_control_input``.

    The public ``tf.control_dependencies`` only affects ops that are made later; these ops already
    exist, made by TensorFlow's gradient functions.
    """
    op._add_control_input(producer)


def call_flat(function: ConcreteFunction, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Calls a function from tensors to a list of tensors: ``_call_flat``.

    A normal call takes 8 microseconds to inspect an argument, and a stage can have hundreds; this
    inspects none.
    """
    results: list[tf.Tensor] = function._call_flat(list(tensors), function.captured_inputs)
    return results


def is_variable(source: Any) -> bool:
    """Whether it is a variable, of Keras or TensorFlow: tensors have no ``handle``."""
    return hasattr(source, "handle")


def handle_of(variable: Any) -> tf.Tensor:
    """The resource handle of a Keras or TensorFlow variable: ``handle``.

    Undocumented in both. Ops of a graph refer to a variable only by its handle.
    """
    return variable.handle


def identity_of(variable: tf.Variable) -> str:
    """By which Keras' optimizers know a variable: ``_unique_id``."""
    return str(variable._unique_id)


def capture(tensor: tf.Tensor) -> tf.Tensor:
    """The placeholder of an outside tensor in the function that is being traced.

    ``FuncGraph.capture``: graphs of functions are public, their class is not.
    """
    return tf.compat.v1.get_default_graph().capture(tensor)


def captures_of(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """The outside tensors that a traced graph captures, by their names in the graph.

    ``FuncGraph.captures``, pairs of outer and inner tensor.
    """
    return {inner.name: outer for outer, inner in graph.captures}


def variables_of(graph: tf.Graph) -> Sequence[tf.Variable]:
    """The variables that a traced graph uses: ``FuncGraph.variables``."""
    used: Sequence[tf.Variable] = graph.variables
    return used


def run_independently(op: tf.Operation) -> bool:
    """Makes an op run in each call of the function being traced, independent of other ops.

    ``FuncGraph.experimental_acd_manager.run_independently``, which TensorFlow uses for its own
    exchanges; it is not public.

    Returns:
        False if the graph is not that of a function, and nothing was done.
    """
    manager = getattr(op.graph, "experimental_acd_manager", None)
    if manager is None:
        return False
    manager.run_independently(op)
    return True
