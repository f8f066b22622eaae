"""Combines the states of Keras metrics over all ranks.

As a rule the state of a metric is sums and counts, so states are added up. A metric whose state is
something else (a maximum, say) must have a method ``merge_state(self, metrics)`` that takes in the
states of other such metrics; without one it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_layer import is_from_keras
from ooodist.compat.keras_metric import set_variables
from ooodist.compat.keras_model import compiled_metrics, metrics_given_to_compile
from ooodist.compat.tensorflow_graph import handle_of
from ooodist.engines.base import Engine
from ooodist.errors import UserError

# Ops that keep a sum a sum: their result is their first input plus or minus something.
_PASSING = ("Identity", "Cast", "Reshape", "EnsureShape", "TensorScatterAdd", "Sub")


def metrics_of(model: keras.Model) -> list[keras.metrics.Metric]:
    """The individual metrics of a model, including compiled ones not used yet."""
    compiled = compiled_metrics(model)
    found = [m for m in model.metrics if m is not compiled]
    found += [
        *(compiled.metrics if compiled else []),
        *metrics_given_to_compile(model),
    ]
    return list({id(m): m for m in found if isinstance(m, keras.metrics.Metric)}.values())


def refuse_what_does_not_add_up(model: keras.Model) -> None:
    """Makes the model's custom metrics check themselves when they are first updated.

    They then raise UserError if their state is not a sum over the updates and they have no
    ``merge_state``. Keras's own metrics are known to add up.
    """
    for metric in metrics_of(model):
        is_watched = "update_state" in vars(metric)
        if not (is_from_keras(metric) or is_watched or hasattr(metric, "merge_state")):
            metric.update_state = _looking(metric, metric.update_state)


def _looking(metric: keras.metrics.Metric, plain: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        if metric.update_state is update_state:
            del metric.update_state  # the replacement on the instance
            check_adds_up(metric, *args, **kwargs)
        return result

    return update_state


def check_adds_up(metric: keras.metrics.Metric, *args: Any, **kwargs: Any) -> None:
    """Raises UserError if an update does anything but add to the state.

    Args:
        metric: a metric that has its variables.
        args, kwargs: arguments of its ``update_state``, which is traced and not run.
    """
    update = tf.function(lambda: metric.update_state(*args, **kwargs), autograph=False)
    graph = update.get_concrete_function().graph
    handles = {graph.capture(handle_of(v)).name: v for v in metric.variables}
    for op in graph.get_operations():
        variable = handles.get(op.inputs[0].name) if op.type == "AssignVariableOp" else None
        if variable is not None and not _adds(op.inputs[1], op.inputs[0].name):
            raise UserError(
                f"metric {metric.name}: {type(metric).__name__}.update_state does not add to its "
                f"variable {variable.name}, so the states of several ranks have no sum that means "
                "something; give the class a method merge_state(self, metrics) that takes in the "
                "states of others"
            )


def _adds(value: tf.Tensor, handle: str) -> bool:
    """Whether a value is that of the variable, or that with something added to it."""
    op = value.op
    if op.type == "ReadVariableOp":
        return bool(op.inputs[0].name == handle)
    if op.type in _PASSING:
        return _adds(op.inputs[0], handle)
    if op.type in ("Add", "AddV2", "AddN"):
        return any(_adds(each, handle) for each in op.inputs)
    if op.type == "SelectV2":
        return all(_adds(each, handle) for each in op.inputs[1:])
    return False


def merge_states(engine: Engine, metric: Any) -> None:
    """Merges the states of all other ranks into a metric, with its own ``merge_state``."""
    gathered = [engine.gather(np.asarray(v.numpy())) for v in metric.variables]
    others = [
        _with_state(metric, [rows[rank] for rows in gathered])
        for rank in range(engine.size)
        if rank != engine.rank
    ]
    metric.merge_state(others)


def _with_state(metric: Any, values: list[np.ndarray]) -> Any:
    """A copy of a metric with these values as its variables."""
    copies = {
        id(v): keras.Variable(value, dtype=v.dtype, trainable=False)
        for v, value in zip(metric.variables, values, strict=True)
    }
    other = object.__new__(type(metric))
    vars(other).update({k: copies.get(id(v), v) for k, v in vars(metric).items()})
    set_variables(other, list(copies.values()))
    return other
