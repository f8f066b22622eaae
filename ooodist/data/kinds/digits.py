"""Handwritten digits, which ship with the package.

They are the test set of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits,
UCI Machine Learning Repository, 1998, doi:10.24432/C50P49, under CC BY 4.0, which scikit-learn
includes too. Importing scikit-learn for it would cost each process more than a second, and Keras
imports it wherever it is installed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from ooodist.config.data import DigitsConfig
from ooodist.data.shift import shifted
from ooodist.data.sources import IndexedSource, Meaning, Pair
from ooodist.data.split import split_indices

ORIGINAL_SIZE = 8  # pixels
LARGEST_VALUE = 16.0  # the largest value of a pixel

_FILE = Path(__file__).with_name("digits.csv.gz")  # one line per image: its pixels and its digit


def load() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (1797, 8, 8), 0 to 16, and digits (1797,), both int64."""
    lines = np.loadtxt(_FILE, delimiter=",", dtype=np.int64)
    return lines[:, :-1].reshape(-1, ORIGINAL_SIZE, ORIGINAL_SIZE), lines[:, -1]


def source(config: DigitsConfig) -> IndexedSource:
    """Makes a source of 1,797 images (image_size, image_size, channels) with labels 0 to 9."""
    pixels, digits = load()
    images = tf.constant(pixels[..., None] / LARGEST_VALUE, tf.float32)
    labels = tf.constant(digits, tf.int32)
    size = config.image_size

    def read(indices: tf.Tensor) -> Pair:
        x = tf.gather(images, indices)
        if size != ORIGINAL_SIZE:
            x = tf.image.resize(x, (size, size), "bilinear", antialias=size < ORIGINAL_SIZE)
        return tf.repeat(x, config.channels, axis=-1), tf.gather(labels, indices)

    def augment(pair: Pair, noise: tf.Tensor) -> Pair:
        x, y = pair
        return shifted(x, noise, furthest=max(1, size // ORIGINAL_SIZE)), y

    fraction = config.validation_fraction
    train, validation = split_indices(len(labels), fraction, config.split_seed, digits)
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
