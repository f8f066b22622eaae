"""What Keras keeps in an optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers import Optimizer


def rate_or_schedule(optimizer: Optimizer) -> Any:
    """The learning rate as it was given, a variable or a schedule: ``Optimizer._learning_rate``.

    The public ``learning_rate`` gives the number of the present step (since Keras 3.0).
    """
    return optimizer._learning_rate


@contextlib.contextmanager
def showing_iterations(optimizer: Optimizer, count: tf.Variable) -> Iterator[None]:
    """In this block the optimizer takes ``count`` for the number of its steps so far.

    The public ``iterations`` reads ``_iterations`` and cannot be set. Set past Keras's tracking of
    attributes, which would save it with the model.
    """
    attributes = vars(optimizer)
    before = attributes["_iterations"]
    attributes["_iterations"] = count
    try:
        yield
    finally:
        attributes["_iterations"] = before


def remember_what_saving_skips() -> None:
    """Has Keras keep which attributes of an optimizer it need not look at when it saves.

    Keras 3.15 keeps them under one name and looks for them under another, so each save makes an
    optimizer to find out. TensorFlow never frees what it keeps for a variable with a new name:
    71 kB a save. The names are ``saving_lib.get_attr_skipset`` and ``global_state``; a Keras
    without them has no such leak that we know of, and is left alone.
    """
    try:
        from keras.src.backend.common import global_state
        from keras.src.saving.saving_lib import get_attr_skipset
    except ImportError:
        return
    read_name = f"saving_attr_skiplist_{keras.optimizers.Optimizer.__name__}"
    if global_state.get_global_attribute(read_name) is None:
        global_state.set_global_attribute(read_name, get_attr_skipset("Optimizer"))
