"""Synchronizes batch-norm moments over the ranks, for ``BatchNormalization(synchronized=True)``."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from functools import partial

import keras
import tensorflow as tf

from ooodist.compat.keras_layer import reduction_axes, replaced_moments
from ooodist.compat.keras_model import layers_of
from ooodist.engines.base import Engine
from ooodist.step.all_ranks.tensors import sum_over_ranks


def synchronized_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """The batch-norm layers of a model that ask for the moments of all ranks."""
    return [
        layer
        for layer in layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized
    ]


@contextlib.contextmanager
def synchronizing(model: keras.Model, engine: Engine) -> Iterator[None]:
    """Makes such layers exchange their moments in this block, in which one step is traced.

    Each call of a layer exchanges one small tensor in the forward pass, and its gradient in the
    backward pass, which is then the gradient of the loss over all ranks.
    """
    layers = synchronized_layers(model) if engine.size > 1 else []
    calls: Counter[int] = Counter()
    with contextlib.ExitStack() as stack:
        for place, layer in enumerate(layers):
            moments = partial(_moments, layer, place, engine, calls)
            stack.enter_context(replaced_moments(layer, moments))
        yield


def _moments(
    layer: keras.layers.BatchNormalization,
    place: int,
    engine: Engine,
    calls: Counter[int],
    inputs: tf.Tensor,
    mask: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Each channel's mean and variance over all ranks: (channels,), dtype of ``inputs``.

    Args:
        place: which of the model's layers it is: ranks may have other names for it.
        calls: how often each layer was called in this step. Each call has a name of its own, so
            that calls do not wait for each other.
        mask: bool, true where an input counts; the shape of ``inputs`` without channels, or None.
    """
    wide = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
    counts = tf.ones_like(wide)
    if mask is not None:
        is_in = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(wide))
        wide = tf.where(is_in, wide, tf.zeros_like(wide))
        counts = tf.cast(is_in, wide.dtype)
    axes = reduction_axes(layer)
    sums = [tf.reduce_sum(values, axes) for values in (wide, tf.square(wide), counts)]
    channels = int(inputs.shape[layer.axis])
    own = tf.reshape(tf.stack(sums), [3, channels])
    name = f"moments.{place}.{calls[place]}.{channels}.{own.dtype.name}"
    calls[place] += 1
    total, squares, count = tf.unstack(sum_over_ranks(engine, own, name))
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.math.divide_no_nan(squares, count) - tf.square(mean)
    # Rounding must not make a variance negative.
    return tf.cast(mean, inputs.dtype), tf.cast(tf.nn.relu(variance), inputs.dtype)
