"""Warns where ranks are given the same batches, or those of one pipeline other ones."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.util.digest import digest

logger = logging.getLogger("ooodist")

_ROWS = 8  # of a batch, which are compared: what ranks share is shared from the first row on


def compare(engine: Engine, batch: Any, place: tuple[int, int]) -> None:
    """Compares the first batches of all ranks, and warns on rank 0; all ranks call it.

    A batch whose rows are all alike, as of a benchmark's constants, is not compared.

    Args:
        engine: the ranks.
        batch: what this rank has read from its data set; None if there is nothing to compare.
        place: which part of the data this rank should have, and of how many.
    """
    x, y, _ = (None,) * 3 if batch is None else keras.utils.unpack_x_y_sample_weight(batch)
    rows = engine.gather(np.array([place[0], _number_of((x, y)), _number_of(y)], np.int64))
    if engine.rank:
        return
    ranks = [(rank, *map(int, row)) for rank, row in enumerate(rows)]
    for one, part, batch_number, labels in ranks:
        for other, other_part, other_number, other_labels in ranks[:one]:
            if part != other_part and batch_number and batch_number == other_number:
                logger.warning(
                    "fit: ranks %d and %d begin with the same batch, so they seem to train on the "
                    "same data; ooodist.shard(data set) gives each rank its own part",
                    other,
                    one,
                )
                return
            if part == other_part and labels and other_labels and labels != other_labels:
                logger.warning(
                    "fit: ranks %d and %d are of the same pipeline, but begin with other labels; "
                    "give both the same data, as ooodist.shard(data set, model=model) does, and "
                    "shuffle it by the same seed",
                    other,
                    one,
                )
                return


def _number_of(values: Any) -> int:
    """A digest of the first rows of a structure of tensors; 0 if there is nothing to tell.

    Tensors may be sparse or ragged.
    """
    leaves = [leaf for leaf in tf.nest.flatten(values, expand_composites=True) if leaf is not None]
    arrays = [np.asarray(leaf[:_ROWS]) for leaf in leaves if len(leaf.shape)]
    if not any(len(array) == 1 or (array[1:] != array[:1]).any() for array in arrays):
        return 0
    texts = (
        str(array.tolist()).encode() if array.dtype == object else array.tobytes()
        for array in arrays
    )
    return int.from_bytes(digest(texts)[:7], "big")  # fits into int64
