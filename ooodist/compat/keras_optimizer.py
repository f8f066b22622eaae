"""Private state of Keras optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers import Optimizer

from ooodist.compat.tensorflow_graph import handle_of


def rate_or_schedule(optimizer: Optimizer) -> Any:
    """The learning rate as given, a variable or a schedule: ``Optimizer._learning_rate``.

    The public ``learning_rate`` returns its value at the current step (since Keras 3.0).
    """
    return optimizer._learning_rate


@contextlib.contextmanager
def showing_iterations(optimizer: Optimizer, count: tf.Variable) -> Iterator[None]:
    """Makes the optimizer take ``count`` for the number of its steps so far in this block.

    The public ``iterations`` reads ``_iterations`` and cannot be set. This bypasses Keras's
    attribute tracking, which would save ``count`` with the model.
    """
    attributes = vars(optimizer)
    before = attributes["_iterations"]
    attributes["_iterations"] = count
    try:
        yield
    finally:
        attributes["_iterations"] = before


def is_function_of_steps(optimizer: Optimizer) -> bool:
    """Whether the learning rate follows from the number of steps alone, by a schedule.

    Of ``_learning_rate``; a schedule of the user's may read variables as well.
    """
    schedule = rate_or_schedule(optimizer)
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return False
    traced = tf.function(schedule, autograph=False)
    return not traced.get_concrete_function(tf.TensorSpec([], tf.int64)).captured_inputs


def uncounted(optimizer: Optimizer) -> tf.Variable:
    """A variable for :func:`as_at_step`, of the dtype of ``_iterations``: ``apply`` adds 1
    to it, which adds nothing.
    """
    count = tf.Variable(0, dtype=optimizer.iterations.dtype, trainable=False)
    count.assign_add = lambda _number: None
    return count


@contextlib.contextmanager
def as_at_step(
    optimizer: Optimizer, count: tf.Variable, rate: tf.Variable | None
) -> Iterator[None]:
    """Makes the optimizer update as at an earlier step in this block, without counting a step.

    Args:
        optimizer: a built optimizer.
        count: the number of its steps before that step; see :func:`uncounted`.
        rate: its learning rate in that step; None: what its schedule says for that step.

    ``iterations`` and schedules read ``_iterations``; ``learning_rate`` returns ``_learning_rate``.
    """
    attributes = vars(optimizer)
    before = {name: attributes[name] for name in ("_iterations", "_learning_rate")}
    attributes["_iterations"] = count
    if rate is not None:
        attributes["_learning_rate"] = rate
    try:
        yield
    finally:
        attributes.update(before)


@contextlib.contextmanager
def averaging_only(optimizer: Optimizer, weights: Sequence[Any]) -> Iterator[None]:
    """Makes the optimizer update the moving averages (``use_ema``) of these weights alone.

    ``apply`` updates those of all weights, whichever it is given: those of
    ``_trainable_variables``, whose averages are in ``_model_variables_moving_average``.
    """
    if not optimizer.use_ema:
        yield
        return
    attributes = vars(optimizer)
    names = ("_trainable_variables", "_model_variables_moving_average")
    before = {name: attributes[name] for name in names}
    own = {id(handle_of(weight)) for weight in weights}
    places = [at for at, v in enumerate(before[names[0]]) if id(handle_of(v)) in own]
    for name, values in before.items():
        attributes[name] = [values[at] for at in places]
    try:
        yield
    finally:
        attributes.update(before)


def unbuilt_copy(optimizer: Optimizer) -> Optimizer:
    """An optimizer of the same kind and settings that has no state: ``_learning_rate``.

    A schedule becomes its present value, as the user's need not have a configuration: the public
    ``get_config`` takes it from ``_learning_rate``.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        config = optimizer.get_config() | {"inner_optimizer": None}
        config["inner_optimizer"] = unbuilt_copy(optimizer.inner_optimizer)
        return type(optimizer)(**config)
    rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    attributes = vars(optimizer)
    before = attributes["_learning_rate"]
    attributes["_learning_rate"] = rate
    try:
        config = optimizer.get_config()
    finally:
        attributes["_learning_rate"] = before
    return type(optimizer).from_config(config | {"learning_rate": rate})


def remember_what_saving_skips() -> None:
    """Makes Keras remember which attributes of an optimizer saving can skip.

    Keras 3.15 stores them under one name and looks for them under another, so each save makes an
    optimizer to find out. TensorFlow never frees what it allocates for a variable with a new name:
    71 kB per save. The names are ``saving_lib.get_attr_skipset`` and ``global_state``; a Keras
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
