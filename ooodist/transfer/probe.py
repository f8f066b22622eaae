"""Compares several starts by training each for a few steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.profiler.state import preserved
from ooodist.step.backward import named_variables
from ooodist.step.optimizer import without_scaling

logger = logging.getLogger("ooodist")


def probe(
    model: keras.Model,
    starts: Sequence[Mapping[str, np.ndarray]],
    batches: Sequence[Any],
    steps: int,
) -> list[float]:
    """The loss that each start reaches; the model is left as it was, bit for bit.

    Args:
        model: a compiled model.
        starts: weights by name, as in the model's graph.
        batches: (x, y) or (x, y, sample_weight); used in turn.
        steps: number of training steps. The loss is the mean over the last half of them.

    Raises:
        UserError: the model is not compiled, so that there is no loss.
    """
    if getattr(model, "optimizer", None) is None:
        raise UserError(
            "warm_start.probe_steps trains for some steps, but the model is not compiled; compile "
            "it before the warm start, or leave probe_steps out"
        )
    by_name = named_variables(model)
    given = [keras.utils.unpack_x_y_sample_weight(batch) for batch in batches]
    optimizer = _twin(model.optimizer)
    optimizer.build(model.trainable_variables)
    first = [np.array(variable.numpy()) for variable in optimizer.variables]

    @tf.function
    def train(x: Any, y: Any, sample_weight: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True), sample_weight, training=True)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    touched = [variable.value for variable in (*by_name.values(), *model.metrics_variables)]
    losses = []
    for start in starts:
        with preserved(touched):
            for name, value in start.items():
                by_name[name].assign(value)
            for variable, value in zip(optimizer.variables, first, strict=True):
                variable.assign(value)
            values = [float(train(*given[step % len(given)])) for step in range(steps)]
            losses.append(float(np.mean(values[len(values) // 2 :])))
    logger.info(
        "warm start: losses after %d steps: %s", steps, ", ".join(f"{x:.4f}" for x in losses)
    )
    return [loss if np.isfinite(loss) else np.inf for loss in losses]


def _twin(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Makes a new optimizer of the same settings, without loss scaling."""
    inner = without_scaling(optimizer)
    return type(inner).from_config(inner.get_config())
