"""Shards fit's arguments over the ranks: arrays are split, all else is used as it is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.tensorflow_data import is_sharded
from ooodist.data.stream import Share
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.trainer import arrays
from ooodist.trainer.given.arguments import Made

logger = logging.getLogger("ooodist")


def share_out(
    given: dict[str, Any],
    model: keras.Model,
    engine: Engine,
    place: tuple[int, int],
    *,
    say: bool,
    made: Callable[[Any, str], Made | None] | None = None,
) -> dict[str, Any]:
    """The arguments with this rank's part of the data; all ranks call it.

    Args:
        given: arguments of fit, by name.
        model: the model that is trained.
        engine: the engine of the job.
        place: which part of the data this rank uses, and of how many.
        say: whether to log what is used as it is.
        made: tells of what an override of fit has made an argument; None: nothing was made.

    Raises:
        UserError: there are too few samples, arguments contradict each other, or nobody knows
            whether each rank's data is a part of its own.
    """
    given = dict(given)
    batch_size = given.get("batch_size") or 32
    if arrays.is_arrays(given.get("x")):
        _share_out_training(given, batch_size, model, engine, place)
    elif (of := made and made(given.get("x"), "x")) is not None:
        _share_out_made(given, of, model, engine, place)
    elif say:
        _say_used_as_is("x", given.get("x"), engine, place)
    validation = given.get("validation_data")
    if isinstance(validation, tuple | list) and arrays.is_arrays(validation[0]):
        part = arrays.evaluation_part(tuple(validation), *place)
        given["validation_data"] = arrays.present(part)
        given["validation_batch_size"] = given.get("validation_batch_size") or batch_size
    elif made and made(validation, "validation_data"):
        given["validation_data"] = arrays.evaluation_batches(validation, *place)
    elif validation is not None and say:
        _say_used_as_is("validation_data", validation, engine, place)
    return given


def _say_used_as_is(name: str, data: Any, engine: Engine, place: tuple[int, int]) -> None:
    if isinstance(data, tf.data.Dataset) and is_sharded(data):
        return
    _, parts = place
    whose = "each" if parts == engine.size else "all ranks of a pipeline the same, each pipeline"
    logger.info(
        "fit: %s is a %s, which is used as it is on every rank; %s must yield its own part, as "
        "ooodist.shard makes of a tf.data.Dataset",
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


def _share_out_made(
    given: dict[str, Any], made: Made, model: keras.Model, engine: Engine, place: tuple[int, int]
) -> None:
    """Shares out batches that an override of fit has made, of the same arrays on every rank."""
    x, parts = given["x"], place[1]
    if made.samples is not None and isinstance(x, tf.data.Dataset):
        found = arrays.training_batches(x, made.samples, *place)
        if found is not None:
            given["x"], steps = found
            given["steps_per_epoch"] = given.get("steps_per_epoch") or steps
            if engine.rank == 0:
                logger.info(
                    "fit: fit of %s makes a data set; each rank makes all of it, in the same order "
                    "if it is shuffled with the same seed%s",
                    type(model).__name__,
                    f", and trains on one batch of {parts}" if parts > 1 else "",
                )
            return
    if parts > 1:
        raise UserError(
            f"fit of {type(model).__name__} makes a {type(x).__name__}, of which nobody can tell "
            f"whether it is the same on all {engine.size} ranks; let it give arrays to Keras's "
            "fit, or a tf.data.Dataset of known length made of arrays that fit was given, or, if "
            "each rank's is a part of its own, set model.ooodist.data_is_shared_out = True before"
        )


def _shuffle_seed(model: keras.Model, engine: Engine) -> int:
    """A seed that is the same on all ranks, and another one after each training.

    Rank 0's counts. It follows from ``keras.utils.set_random_seed`` or ``tf.random.set_seed``, as
    Keras's own shuffling does. Drawn in a graph of its own, it does not advance the program's
    sequences.
    """
    draw = tf.function(lambda: tf.random.uniform([], 0, 2**31 - 1, tf.int64), autograph=False)
    number = int(draw.get_concrete_function()())  # calling ``draw`` warns of functions called once
    steps = int(model.optimizer.iterations) if model.compiled else 0
    seed = np.random.SeedSequence([number, steps]).generate_state(1)
    return int(engine.broadcast([seed.astype(np.int64)])[0][0])
