"""Shards fit's arguments over the ranks: arrays are split, all else is used as it is."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.data.stream import Share
from ooodist.engines.base import Engine
from ooodist.trainer import arrays

logger = logging.getLogger("ooodist")


def share_out(
    given: dict[str, Any],
    model: keras.Model,
    engine: Engine,
    place: tuple[int, int],
    *,
    say: bool,
) -> dict[str, Any]:
    """Returns the arguments with this rank's part of the data; all ranks call it.

    Args:
        given: arguments of fit, by name.
        model: the model that is trained.
        engine: the engine of the job.
        place: which part of the data this rank uses, and of how many.
        say: whether to log what is used as it is.

    Raises:
        UserError: there are too few samples, or arguments contradict each other.
    """
    given = dict(given)
    batch_size = given.get("batch_size") or 32
    if arrays.is_arrays(given.get("x")):
        _share_out_training(given, batch_size, model, engine, place)
    elif say:
        _say_used_as_is("x", given.get("x"), engine, place)
    validation = given.get("validation_data")
    if isinstance(validation, tuple | list) and arrays.is_arrays(validation[0]):
        part = arrays.evaluation_part(tuple(validation), *place)
        given["validation_data"] = arrays.present(part)
        given["validation_batch_size"] = given.get("validation_batch_size") or batch_size
    elif validation is not None and say:
        _say_used_as_is("validation_data", validation, engine, place)
    return given


def _say_used_as_is(name: str, data: Any, engine: Engine, place: tuple[int, int]) -> None:
    _, parts = place
    whose = "each" if parts == engine.size else "all ranks of a pipeline the same, each pipeline"
    logger.info(
        "fit: %s is a %s, which is used as it is on every rank; %s must yield its own part",
        name,
        type(data).__name__,
        whose,
    )


def _share_out_training(
    given: dict[str, Any],
    batch_size: int,
    model: keras.Model,
    engine: Engine,
    place: tuple[int, int],
) -> None:
    """Replaces arrays with an endless stream of this rank's batches."""
    given.pop("batch_size", None)
    data = tuple(given.pop(name, None) for name in arrays.NAMES)
    fraction = given.pop("validation_split", 0.0)
    if fraction and given.get("validation_data") is None:
        data, given["validation_data"] = arrays.validation_split(data, fraction)
    data = arrays.with_class_weight(data, given.pop("class_weight", None))
    shuffle = given.get("shuffle", True)
    given["shuffle"] = False  # the stream is shuffled; keeps Keras from warning that it is not
    share = Share(batch_size, *place, _shuffle_seed(model, engine) if shuffle else 0)
    given["x"], steps = arrays.training_stream(arrays.present(data), share, shuffle)
    given["steps_per_epoch"] = given.get("steps_per_epoch") or steps


def _shuffle_seed(model: keras.Model, engine: Engine) -> int:
    """Returns a seed that is the same on all ranks, and another one after each training.

    Rank 0's counts. It follows from ``keras.utils.set_random_seed`` or ``tf.random.set_seed``, as
    Keras's own shuffling does. Drawn in a graph of its own, it does not advance the program's
    sequences.
    """
    draw = tf.function(lambda: tf.random.uniform([], 0, 2**31 - 1, tf.int64), autograph=False)
    number = int(draw.get_concrete_function()())  # calling ``draw`` warns of functions called once
    steps = int(model.optimizer.iterations) if model.compiled else 0
    seed = np.random.SeedSequence([number, steps]).generate_state(1)
    return int(engine.broadcast([seed.astype(np.int64)])[0][0])
