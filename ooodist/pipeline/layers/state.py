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
from ooodist.step.optimizer import optimizer_state_of


def size_of(variable: keras.Variable) -> int:
    """Returns the bytes of a variable."""
    return math.prod(variable.shape) * int(tf.as_dtype(variable.dtype).size)


def summed_as(variable: Any) -> np.dtype:
    """Returns the dtype in which gradients of a variable are summed: MPI adds no 16-bit floats."""
    return np.dtype(np.float64 if tf.as_dtype(variable.dtype) == tf.float64 else np.float32)


def state_bytes(model: keras.Model) -> dict[str, int]:
    """Returns for each variable of a compiled model, by path, its bytes and those of its optimizer
    state: momentum, moments, averages, whatever the optimizer keeps for it."""
    optimizer_state = optimizer_bytes(model)
    return {v.path: size_of(v) + optimizer_state.get(v.path, 0) for v in model.variables}


def optimizer_bytes(model: keras.Model) -> dict[str, int]:
    """Returns for each weight that a compiled model trains, by path, the bytes of its optimizer
    state."""
    optimizer, weights = model.optimizer, model.trainable_variables
    if not optimizer.built:
        optimizer = unbuilt_copy(optimizer)
        build_without_values(optimizer, weights)
    found = {weight.path: 0 for weight in weights}
    for variable, path in optimizer_state_of(optimizer, [weight.path for weight in weights]):
        if path:
            found[path] += size_of(variable)
    return found
