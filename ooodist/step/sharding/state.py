"""Counts the bytes of a model's weights and of what its optimizer keeps for them.

Shapes tell: no variable needs a value.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_deferred import build_without_values
from ooodist.compat.keras_optimizer import unbuilt_copy
from ooodist.step.backward import named_variables, variable_names
from ooodist.step.optimizer import optimizer_state_of


def size_of(variable: keras.Variable) -> int:
    """The bytes of a variable."""
    return math.prod(variable.shape) * int(tf.as_dtype(variable.dtype).size)


def summed_as(variable: Any) -> np.dtype:
    """The dtype in which pipelines sum a variable's gradients: MPI adds no 16-bit floats."""
    return np.dtype(np.float64 if tf.as_dtype(variable.dtype) == tf.float64 else np.float32)


def state_bytes(model: keras.Model) -> dict[str, int]:
    """Finds for each variable of a compiled model, by name, its bytes and those of its optimizer
    state: momentum, moments, averages, whatever the optimizer keeps for it."""
    optimizer_state = optimizer_bytes(model)
    return {n: size_of(v) + optimizer_state.get(n, 0) for n, v in named_variables(model).items()}


def optimizer_bytes(model: keras.Model) -> dict[str, int]:
    """Finds for each weight that a compiled model trains, by name, the bytes of its optimizer
    state."""
    optimizer, weights = model.optimizer, model.trainable_variables
    if not optimizer.built:
        optimizer = unbuilt_copy(optimizer)
        build_without_values(optimizer, weights)
    named = dict(zip(variable_names(weights), weights, strict=True))
    found = dict.fromkeys(named, 0)
    for variable, name in optimizer_state_of(optimizer, named):
        if name:
            found[name] += size_of(variable)
    return found
