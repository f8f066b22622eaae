"""Augments images by shifting them."""

from __future__ import annotations

import tensorflow as tf


def shifted(images: tf.Tensor, noise: tf.Tensor, furthest: int) -> tf.Tensor:
    """Shifts each image by up to ``furthest`` pixels along both axes, and fills the gap with 0.

    ``images``: (n, height, width, channels). ``noise``: random int32 numbers (n,), which alone
    decide the shifts.
    """
    height, width = images.shape[1], images.shape[2]
    choices = 2 * furthest + 1
    # floormod is never negative, so both are in [0, 2 * furthest].
    down = tf.math.floormod(noise, choices)
    right = tf.math.floormod(tf.math.floordiv(noise, choices), choices)
    padded = tf.pad(images, [[0, 0], [furthest, furthest], [furthest, furthest], [0, 0]])
    rows = down[:, None] + tf.range(height)
    columns = right[:, None] + tf.range(width)
    moved = tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)
    return tf.ensure_shape(moved, images.shape)
