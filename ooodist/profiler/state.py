"""Saves and restores all state that training steps change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_deferred import has_value
from ooodist.compat.tensorflow_graph import handle_of, variables_of
from ooodist.step.optimizer import optimizers_of


def all_variables(model: keras.Model, graph: Any) -> list[tf.Variable]:
    """All that a training step may change: weights, optimizer state, metrics, seeds.

    Args:
        model: a built model with a built optimizer.
        graph: the FuncGraph of a traced step, which also knows variables that are not the model's.
    """
    held = [*model.variables, *model.metrics_variables]
    held += [variable for optimizer in optimizers_of(model) for variable in optimizer.variables]
    held = [variable for variable in held if has_value(variable)]  # other ranks may have it
    plain = [v.value if isinstance(v, keras.Variable) else v for v in held]
    return list({id(handle_of(v)): v for v in (*plain, *variables_of(graph))}.values())


@contextlib.contextmanager
def preserved(variables: Sequence[tf.Variable]) -> Iterator[None]:
    """Restores the values of the variables, bit for bit, after this block."""
    values = [np.array(variable.numpy()) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
