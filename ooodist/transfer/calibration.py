"""Makes inserted batch norms the identity in training, too.

A new batch norm is the identity at inference, as its moving mean is 0 and its variance 1. In
training it normalizes by the batch. If gamma and beta undo exactly that, it changes nothing there
either.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from ooodist.compat.keras_model import layers_of
from ooodist.profiler.state import preserved
from ooodist.step.backward import named_variables

logger = logging.getLogger("ooodist")


def calibrate(model: keras.Model, gammas: Collection[str], batch: Any) -> None:
    """Sets the inserted batch norms by the statistics of their inputs.

    One pass is enough: each is frozen in it, which makes it the identity in training mode too, so
    that none changes the inputs of the others. All other batch norms normalize by the batch, as
    they will in the first step.

    Args:
        model: a model whose inserted batch norms are the identity at inference.
        gammas: names of the gammas of these norms.
        batch: (x, ...) as the training data yields it.
    """
    if not gammas:
        return
    variables = named_variables(model)
    wanted = {id(variable) for name, variable in variables.items() if name in gammas}
    norms = [
        layer
        for layer in layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization) and id(layer.gamma) in wanted
    ]
    x = batch[0] if isinstance(batch, (tuple, list)) else batch
    values = [variable.value for variable in variables.values()]
    with preserved(values), _frozen(norms), _inputs(norms) as inputs:
        model(x, training=True)
    if len(inputs) < len(gammas):
        logger.info(
            "warm start: %d new batch norms cannot be watched, and are not calibrated",
            len(gammas) - len(inputs),
        )
    for number, found in inputs.items():
        _set(norms[number], found)


def _set(norm: keras.layers.BatchNormalization, values: np.ndarray) -> None:
    """Makes the batch norm the identity: in training for these values, at inference for any."""
    channel = norm.axis % values.ndim
    axes = tuple(number for number in range(values.ndim) if number != channel)
    mean, variance = values.mean(axis=axes), values.var(axis=axes)
    norm.moving_variance.assign(variance)
    norm.gamma.assign(np.sqrt(variance + norm.epsilon))
    if norm.beta is not None:  # without it, nothing can undo the subtraction of the mean
        norm.moving_mean.assign(mean)
        norm.beta.assign(mean)


@contextlib.contextmanager
def _frozen(layers: Sequence[keras.Layer]) -> Iterator[None]:
    """Makes the layers non-trainable in this block."""
    before = [layer.trainable for layer in layers]
    for layer in layers:
        layer.trainable = False
    try:
        yield
    finally:
        for layer, trainable in zip(layers, before, strict=True):
            layer.trainable = trainable


@contextlib.contextmanager
def _inputs(layers: Sequence[keras.Layer]) -> Iterator[dict[int, np.ndarray]]:
    """Records the input of each layer's first call in this block, by the layer's index."""
    found: dict[int, np.ndarray] = {}

    def replacement(number: int, plain: Any) -> Any:
        def call(inputs: Any, *arguments: Any, **named: Any) -> Any:
            if number not in found and hasattr(inputs, "numpy"):  # not while a function is traced
                found[number] = np.asarray(inputs, np.float64)
            return plain(inputs, *arguments, **named)

        return call

    for number, layer in enumerate(layers):
        layer.call = replacement(number, layer.call)  # on the instance
    try:
        yield found
    finally:
        for layer in layers:
            del layer.call
