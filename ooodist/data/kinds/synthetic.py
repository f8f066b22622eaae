"""Random samples of any shape whose targets can be learned."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from ooodist.config.data import SyntheticConfig
from ooodist.data.sources import IndexedSource, Meaning, Pair
from ooodist.data.split import split_indices
from ooodist.errors import UserError

LARGEST_BYTES = 4 * 2**30
NUM_FEATURES = 64  # at most this many numbers of a sample decide its target
COMMON_SUCCESSOR = 0.9  # how often a token is followed by its successor in the table


def source(config: SyntheticConfig) -> IndexedSource:
    """Makes a source of samples and targets that depend only on the settings."""
    num_bytes = 4 * config.num_samples * math.prod(config.input_shape)
    if num_bytes > LARGEST_BYTES:
        raise UserError(
            f"data.num_samples {config.num_samples} of data.input_shape "
            f"{list(config.input_shape)} would take {num_bytes / 2**30:.1f} GiB of memory in every "
            f"worker, allowed are {LARGEST_BYTES // 2**30}: reduce data.num_samples"
        )
    random = np.random.default_rng(config.seed)
    x, y = _language(config, random) if _is_language(config) else _projection(config, random)
    inputs, targets = tf.constant(x), tf.constant(y)

    def read(indices: tf.Tensor) -> Pair:
        return tf.gather(inputs, indices), tf.gather(targets, indices)

    fraction = config.validation_fraction
    train, validation = split_indices(config.num_samples, fraction, config.seed)
    return IndexedSource(_meaning(config), train, validation if fraction else None, read)


def _is_language(config: SyntheticConfig) -> bool:
    return config.num_classes is None and config.target_shape is None


def _meaning(config: SyntheticConfig) -> Meaning:
    description = f"{config.dtype} of shape {list(config.input_shape)}"
    if _is_language(config):
        return Meaning(
            config.name,
            f"{description}, {config.vocabulary} tokens",
            "language",
            config.vocabulary,
        )
    if config.num_classes is not None:
        description = f"{description}, {config.num_classes} classes"
        return Meaning(config.name, description, "classification", config.num_classes)
    assert config.target_shape is not None
    description = f"{description}, targets of shape {list(config.target_shape)}"
    return Meaning(config.name, description, "regression", None)


def _projection(
    config: SyntheticConfig, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Makes targets a random linear function of a few numbers of x; a label is its argmax."""
    shape = (config.num_samples, *config.input_shape)
    x: np.ndarray
    if config.vocabulary is None:
        x = random.standard_normal(shape, dtype=np.float32)
        numbers = x
    else:
        x = random.integers(config.vocabulary, size=shape, dtype=np.int32)
        numbers = random.standard_normal(config.vocabulary, dtype=np.float32)[x]
    numbers = numbers.reshape(config.num_samples, -1)
    num_features = min(NUM_FEATURES, numbers.shape[1])
    features = numbers[:, random.choice(numbers.shape[1], num_features, replace=False)]
    num_outputs = config.num_classes or math.prod(config.target_shape or ())
    weights = random.standard_normal((num_features, num_outputs), dtype=np.float32)
    outputs = features @ weights / np.float32(math.sqrt(num_features))
    if config.num_classes is not None:
        return x, outputs.argmax(axis=1).astype(np.int32)
    return x, outputs.reshape(config.num_samples, *(config.target_shape or ()))


def _language(
    config: SyntheticConfig, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Makes sequences in which a fixed table mostly gives the token that follows another."""
    assert config.vocabulary is not None
    (length,) = config.input_shape
    successor = random.permutation(config.vocabulary).astype(np.int32)
    tokens = random.integers(
        config.vocabulary, size=(config.num_samples, length + 1), dtype=np.int32
    )
    follows = random.random((config.num_samples, length)) < COMMON_SUCCESSOR
    for position in range(length):
        tokens[:, position + 1] = np.where(
            follows[:, position], successor[tokens[:, position]], tokens[:, position + 1]
        )
    return tokens[:, :-1], tokens[:, 1:]
