"""The handwritten digits that ship with scikit-learn."""

from __future__ import annotations

import tensorflow as tf
from sklearn.datasets import load_digits

from ooodist.data.config import DigitsConfig
from ooodist.data.shift import shifted
from ooodist.data.sources import IndexedSource, Meaning, Pair
from ooodist.data.split import split_indices

ORIGINAL_SIZE = 8  # pixels
LARGEST_VALUE = 16.0  # of a pixel


def source(config: DigitsConfig) -> IndexedSource:
    """1,797 images of (image_size, image_size, channels), labels 0 to 9."""
    digits = load_digits()
    images = tf.constant(digits.images[..., None] / LARGEST_VALUE, tf.float32)
    labels = tf.constant(digits.target, tf.int32)
    size = config.image_size

    def read(indices: tf.Tensor) -> Pair:
        x = tf.gather(images, indices)
        if size != ORIGINAL_SIZE:
            x = tf.image.resize(x, (size, size), "bilinear", antialias=size < ORIGINAL_SIZE)
        return tf.repeat(x, config.channels, axis=-1), tf.gather(labels, indices)

    def augment(x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        return shifted(x, noise, furthest=max(1, size // ORIGINAL_SIZE))

    fraction = config.validation_fraction
    train, validation = split_indices(len(labels), fraction, config.split_seed, digits.target)
    meaning = Meaning(
        kind=config.name,
        description=f"images of {size}x{size}x{config.channels}, 10 classes",
        task="classification",
        num_classes=10,
    )
    return IndexedSource(
        meaning,
        train,
        validation if fraction else None,
        read,
        augment=augment if config.augment else None,
    )
