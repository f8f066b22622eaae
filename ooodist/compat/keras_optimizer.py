"""Private state of Keras optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers import Optimizer

from ooodist.compat.attributes import replaced
from ooodist.compat.tensorflow_graph import handle_of


def rate_or_schedule(optimizer: Optimizer) -> Any:
    """The learning rate as given, a variable or a schedule: ``Optimizer._learning_rate``.

    The public ``learning_rate`` returns its value at the current step (since Keras 3.0).
    """
    return optimizer._learning_rate


def showing_iterations(optimizer: Optimizer, count: tf.Variable) -> AbstractContextManager[None]:
    """Makes the optimizer take ``count`` for the number of its steps so far in a block.

    The public ``iterations`` reads ``_iterations`` and cannot be set.
    """
    return replaced(optimizer, _iterations=count)


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


def as_at_step(
    optimizer: Optimizer, count: tf.Variable, rate: tf.Variable | None
) -> AbstractContextManager[None]:
    """Makes the optimizer update as at an earlier step in a block, without counting a step.

    Args:
        optimizer: a built optimizer.
        count: the number of its steps before that step; see :func:`uncounted`.
        rate: its learning rate in that step; None: what its schedule says for that step.

    ``iterations`` and schedules read ``_iterations``; ``learning_rate`` returns ``_learning_rate``.
    """
    rates = {} if rate is None else {"_learning_rate": rate}
    return replaced(optimizer, _iterations=count, **rates)


def averaging_only(optimizer: Optimizer, weights: Sequence[Any]) -> AbstractContextManager[None]:
    """Makes the optimizer update the moving averages (``use_ema``) of these weights alone.

    ``apply`` updates those of all weights, whichever it is given: those of
    ``_trainable_variables``, whose averages are in ``_model_variables_moving_average``.
    """
    if not optimizer.use_ema:
        return contextlib.nullcontext()
    own = {id(handle_of(weight)) for weight in weights}
    variables, averages = optimizer._trainable_variables, optimizer._model_variables_moving_average
    places = [at for at, v in enumerate(variables) if id(handle_of(v)) in own]
    return replaced(
        optimizer,
        _trainable_variables=[variables[at] for at in places],
        _model_variables_moving_average=[averages[at] for at in places],
    )


def clipping_as_of_all(
    optimizer: Optimizer, gradients: Sequence[Any], own: Sequence[int]
) -> AbstractContextManager[None]:
    """Makes ``apply`` with some gradients clip them as if it were given all in a block.

    ``_clip_gradients`` gets the gradients, divided by ``loss_scale_factor``.

    Args:
        optimizer: which may have ``global_clipnorm``.
        gradients: all gradients; none is None.
        own: the places of those that ``apply`` is given, in their order.
    """
    if not optimizer.global_clipnorm:
        return contextlib.nullcontext()
    clip, factor = optimizer._clip_gradients, optimizer.loss_scale_factor

    def clip_own(_own: Sequence[Any]) -> list[Any]:
        clipped = clip([g if factor is None else g / factor for g in gradients])
        return [clipped[place] for place in own]

    return replaced(optimizer, _clip_gradients=clip_own)


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
    with replaced(optimizer, _learning_rate=rate):
        config = optimizer.get_config()
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
