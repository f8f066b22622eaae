"""Samples for a byte-level language model: adjacent, non-overlapping windows of a text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from ooodist.config.data import TextConfig
from ooodist.data.sources import IndexedSource, Meaning, Pair
from ooodist.errors import UserError

NUM_BYTES = 256


def source(config: TextConfig) -> IndexedSource:
    """Makes a source of int32 x and y (sequence_length,), y one byte ahead.

    The end of the text is for validation.
    """
    text = "\n".join(topics()).encode() if config.source == "topics" else _read(config.source)
    length = config.sequence_length
    num_windows = (len(text) - 1) // length  # the last window needs a next byte
    if num_windows < 1:
        raise UserError(
            f"data.source {config.source} has {len(text)} bytes, a sample of "
            f"data.sequence_length {length} needs {length + 1}: give a longer text or reduce "
            "data.sequence_length"
        )
    content = tf.constant(np.frombuffer(text, np.uint8))
    offsets = tf.range(length + 1, dtype=tf.int64)

    def read(indices: tf.Tensor) -> Pair:
        windows = tf.cast(tf.gather(content, indices[:, None] * length + offsets), tf.int32)
        return windows[:, :-1], windows[:, 1:]

    num_train = num_windows - round(config.validation_fraction * num_windows)
    meaning = Meaning(
        kind=config.name,
        description=f"sequences of {length} bytes of {config.source}",
        task="language",
        num_classes=NUM_BYTES,
    )
    return IndexedSource(
        meaning,
        train=np.arange(num_train),
        validation=np.arange(num_train, num_windows) if config.validation_fraction else None,
        read=read,
    )


def topics() -> list[str]:
    """The help texts that ship with Python, by their names."""
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"data.source {path} cannot be read ({error.strerror}): give the path of a text "
            "file, or topics for the text that ships with Python"
        ) from error
