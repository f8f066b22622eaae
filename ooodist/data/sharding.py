"""Gives each rank its part of a ``tf.data.Dataset`` that all ranks have."""

from __future__ import annotations

import logging
from typing import Any

import keras
import tensorflow as tf

from ooodist import engines
from ooodist.compat.tensorflow_data import sharded_by_file, shuffle_seeds, steps_of
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.util.quantity import counted

logger = logging.getLogger("ooodist")

# So many files a rank that a file more or less is little; else each has the same number of files.
MANY_FILES = 16
_COUNT_ELEMENTS = ("_TakeDataset", "_SkipDataset")  # of the whole, not of a rank's files


def shard(
    dataset: tf.data.Dataset, *, model: keras.Model | None = None, drop_remainder: bool = True
) -> tf.data.Dataset:
    """Gives this rank its part of a data set that all ranks have; all ranks call it.

    By file, where the data set reads enough files, so that a rank reads only its own; else by
    element: of batches, each rank takes every n-th batch, and of samples, every n-th sample. All
    that comes before it in the data set then runs on every rank, so shard early: before samples
    are decoded, augmented and shuffled.

    Args:
        dataset: the same on all ranks, shuffled by the same seed if at all.
        model: one that was given to ``ooodist.pipelined``: its pipelines have a part each, and the
            ranks of a pipeline have the same.
        drop_remainder: whether to leave out the last elements, so that all ranks have equally many,
            as training needs. False is for an evaluation, which uses each element once.

    Returns:
        the part. By file, or if the length is unknown, ranks may have some batches more than
        others; ``fit`` then does as many as the rank that has fewest.

    Raises:
        UserError: there are fewer elements than parts, it is no ``tf.data.Dataset``, or the model
            was not given to ooodist.
    """
    engine = engines.current()
    index, number = engine.rank, engine.size
    with engine.agreed():
        if model is not None:
            if not hasattr(model, "ooodist"):
                raise UserError(
                    f"ooodist.shard is given model {model.name} before ooodist.pipelined is; leave "
                    "it out if the model is in no pipeline"
                )
            index, number = model.ooodist.strategy.shard
        if not isinstance(dataset, tf.data.Dataset):
            raise UserError(
                f"ooodist.shard is given a {type(dataset).__name__}; it takes a tf.data.Dataset "
                "(fit shares out arrays by itself)"
            )
    if number == 1:
        return dataset
    with engine.agreed():
        part = _by_file(dataset, index, number, even=drop_remainder)
        how = "by file"
        if part is None:
            part, how = _by_element(dataset, index, number, even=drop_remainder), "by element"
    elements = int(dataset.cardinality())
    engine.check_equal("what ooodist.shard is given", f"{how}, {elements} {dataset.element_spec}")
    _compare_shuffles(engine, dataset, how)
    if engine.rank == 0:
        logger.info("shard: %s, for %s", how, counted(number, "part"))
    return part


def _by_file(
    dataset: tf.data.Dataset, index: int, number: int, *, even: bool
) -> tf.data.Dataset | None:
    """The part by file; None if the data set reads no files, or not enough."""
    steps = list(steps_of(dataset))
    sources = [step for step in steps if len(list(steps_of(step))) == 1]  # of itself alone
    files = [int(step.cardinality()) for step in sources]
    names = tf.TensorSpec((), tf.string)
    if (
        any(step.element_spec != names for step in sources)
        or any(count < number or (even and not _is_enough(count, number)) for count in files)
        or any(type(step).__name__ in _COUNT_ELEMENTS for step in steps)
        # A reader's own length is never known; strings that are no files have one.
        or all(step.cardinality() != tf.data.UNKNOWN_CARDINALITY for step in steps)
    ):
        return None
    try:
        return sharded_by_file(dataset, index, number)
    except tf.errors.OpError:
        return None


def _is_enough(files: int, number: int) -> bool:
    return files % number == 0 or files >= MANY_FILES * number


def _by_element(
    dataset: tf.data.Dataset, index: int, number: int, *, even: bool
) -> tf.data.Dataset:
    elements = int(dataset.cardinality())
    if 0 <= elements < number:
        raise UserError(
            f"ooodist.shard is given a data set of {counted(elements, 'element')} for {number} "
            "parts, but each needs one at least; give more, or smaller batches"
        )
    if even and elements > 0:
        dataset = dataset.take(elements - elements % number)
    return dataset.shard(number, index)


def _compare_shuffles(engine: Engine, dataset: tf.data.Dataset, how: str) -> None:
    """Warns where ranks take parts of different orders; all ranks call it."""
    seeds: list[Any] = [shuffle_seeds(step) for step in steps_of(dataset)]
    of_ranks = engine.gather_text(str(seeds))
    if how == "by file" or engine.rank:
        return
    if (0, 0) in seeds or len(set(of_ranks)) > 1:
        logger.warning(
            "shard: the data set is shuffled before, in another order on each rank, so some "
            "elements are on several ranks and others on none; shuffle after ooodist.shard, or by "
            "the same seed: shuffle(n, seed=1), or keras.utils.set_random_seed on all ranks"
        )
