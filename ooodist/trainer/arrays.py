"""Shards the arrays given to ``fit`` and ``evaluate``: each rank takes its part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.data.reading import map_batches, untuned
from ooodist.data.stream import Share, shuffled_indices
from ooodist.errors import UserError
from ooodist.trainer.given import sparse

NAMES = ("x", "y", "sample_weight")  # arguments of fit and evaluate, in the order of a batch


def present(data: Iterable[Any]) -> tuple[Any, ...]:
    """Returns x, y and sample_weight without those that are None."""
    return tuple(part for part in data if part is not None)


def is_arrays(x: Any) -> bool:
    """Whether ``x`` is indexed by sample: arrays, tensors, or a structure of them."""
    if x is None or isinstance(x, tf.data.Dataset | keras.utils.PyDataset):
        return False
    leaves = tf.nest.flatten(x)
    return bool(leaves) and all(hasattr(leaf, "shape") and len(leaf.shape) for leaf in leaves)


def num_samples(x: Any) -> int:
    """The number of samples in a structure of arrays of shape (samples, ...).

    Raises:
        UserError: the arrays have different lengths.
    """
    lengths = {int(leaf.shape[0]) for leaf in tf.nest.flatten(x)}
    if len(lengths) > 1:
        raise UserError(
            f"the arrays have different numbers of samples: {sorted(lengths)}; "
            "x, y and sample_weight must have one each per sample"
        )
    return lengths.pop()


def take(arrays: Any, rows: Any) -> Any:
    """The given rows (a slice) of every array; None stays None."""
    return tf.nest.map_structure(lambda a: None if a is None else sparse.rows_of(a, rows), arrays)


def validation_split(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """Splits off the last ``fraction`` of the samples, as Keras does.

    Raises:
        UserError: one of the two parts would be empty.
    """
    total = num_samples([a for a in tf.nest.flatten(arrays) if a is not None])
    at = math.floor(total * (1.0 - fraction))
    if not 0 < at < total:
        raise UserError(
            f"validation_split is {fraction}, which leaves {at} of {total} samples for training; "
            "choose a fraction that leaves some for both"
        )
    return take(arrays, slice(0, at)), take(arrays, slice(at, None))


def with_class_weight(data: Sequence[Any], class_weight: Mapping[int, float] | None) -> Any:
    """Returns (x, y, sample_weight), weighted by class as in Keras; classes not named weigh 1.

    Args:
        data: y has shape (samples, ...): class numbers, or one-hot along the last axis.
        class_weight: weight by class number; None leaves the data as it is.

    Raises:
        UserError: sample weights are given too, or the model has several outputs.
    """
    x, y, sample_weight = data
    if class_weight is None:
        return x, y, sample_weight
    if sample_weight is not None or keras.tree.is_nested(y) or y is None:
        reason = "sample_weight is given too" if sample_weight is not None else "y is not one array"
        raise UserError(
            f"class_weight is {dict(class_weight)}, but {reason}; give the product of all weights "
            "as sample_weight"
        )
    classes = np.asarray(y)
    if classes.ndim > 1:
        is_one_hot = classes.shape[-1] > 1
        classes = classes.argmax(axis=-1) if is_one_hot else classes.squeeze(axis=-1)
    numbers, places = np.unique(np.rint(classes).astype(np.int64), return_inverse=True)
    weights = np.array([class_weight.get(int(n), 1.0) for n in numbers], keras.config.floatx())
    return x, y, weights[places].reshape(classes.shape)


def training_stream(
    arrays: tuple[Any, ...], share: Share, shuffle: bool
) -> tuple[tf.data.Dataset, int]:
    """This rank's endless batches of (x, y, ...), and the number of steps per epoch.

    Args:
        arrays: x, y and, if given, sample_weight; the same on every rank.
        share: which part of the stream this rank uses.
        shuffle: use a new order each epoch, the same on all ranks; else the arrays' own order.

    Raises:
        UserError: a step needs more samples than there are.
    """
    total = num_samples(arrays)
    steps = total // share.global_batch
    if not steps:
        raise UserError(
            f"batch_size {share.batch} x {share.size} workers needs at least "
            f"{share.global_batch} samples, there are {total}: reduce batch_size"
        )
    if shuffle:
        numbers = shuffled_indices(total, share).map(lambda indices, _noise: indices)
    else:
        numbers = tf.data.Dataset.range(total).repeat().batch(share.batch, drop_remainder=True)
        numbers = numbers.shard(share.size, share.rank)
    # Dataset.map would take a list for a single tensor.
    readers = tf.nest.map_structure(sparse.reader, keras.tree.lists_to_tuples(arrays))

    def read(indices: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda rows: rows(indices), readers)

    stream = map_batches(numbers, read)
    return untuned(stream.prefetch(tf.data.AUTOTUNE)), steps


def training_batches(
    batches: tf.data.Dataset, samples: int, rank: int, size: int
) -> tuple[tf.data.Dataset, int | None] | None:
    """This rank's endless share of batches that all ranks have, and the steps per epoch.

    Args:
        batches: batches of (x, y, ...), the same on every rank.
        samples: how many samples they have in all. The last batch is left out if it is smaller.
        rank, size: which share, and of how many.

    Returns:
        None if their number is unknown; the steps are None if they have no end.

    Raises:
        UserError: there are too few of them.
    """
    number = int(batches.cardinality())
    if number == tf.data.INFINITE_CARDINALITY:
        return batches.shard(size, rank), None
    if number < 0:
        return None
    batch = tf.nest.flatten(batches.element_spec)[0].shape[0]
    if batch is None and number:
        batch = int(tf.nest.flatten(next(iter(batches)))[0].shape[0])
    if batch and number == -(-samples // batch):
        number = samples // batch
    steps = number // size
    if not steps:
        raise UserError(
            f"{number} whole batches of {batch} samples for {size} workers: each needs at least "
            "one; reduce batch_size"
        )
    return batches.take(steps * size).shard(size, rank).repeat(), steps


def evaluation_batches(batches: Any, rank: int, size: int) -> Any:
    """This rank's share of batches that all ranks have; all where it cannot be told."""
    if not isinstance(batches, tf.data.Dataset) or int(batches.cardinality()) < size:
        return batches  # the mean over the ranks is the same
    return batches.shard(size, rank)


def prediction_batches(batches: Any, rank: int, size: int) -> Any:
    """This rank's share of batches that all ranks have: those of all follow each other.

    Raises:
        UserError: there are fewer batches than parts, or their number is unknown.
    """
    if size == 1:
        return batches
    number = int(batches.cardinality()) if isinstance(batches, tf.data.Dataset) else -1
    if number < size:
        raise UserError(
            f"predict of the model makes {'an unknown number of' if number < 0 else number} "
            f"batches for {size} pipelines: each needs at least one; give smaller batches"
        )
    first, last = rank * number // size, (rank + 1) * number // size
    return batches.skip(first).take(last - first)


def first_batch(given: Mapping[str, Any]) -> Any:
    """The first batch of ``fit(**given)`` or ``evaluate``, without consuming the data.

    Raises:
        UserError: this kind of data cannot be read without using it up.
    """
    x = given.get("x")
    if isinstance(x, tf.data.Dataset):
        batch = next(iter(x))
    elif isinstance(x, keras.utils.PyDataset):
        batch = x[0]
    elif is_arrays(x):
        data = present([given.get(name) for name in NAMES])
        rows = slice(0, given.get("batch_size") or 32)
        batch = tf.nest.map_structure(sparse.as_tensor, take(data, rows))
    else:
        raise UserError(
            f"x is a {type(x).__name__}, which cannot be looked at without using it up, "
            "but the order is to be planned; give arrays, a tf.data.Dataset or a "
            "keras.utils.PyDataset, or a plan that was made before"
        )
    if given.get("class_weight") is None:
        return batch
    return with_class_weight(keras.utils.unpack_x_y_sample_weight(batch), given["class_weight"])


def evaluation_part(arrays: Any, rank: int, size: int) -> Any:
    """This rank's rows; every sample is on exactly one rank.

    Raises:
        UserError: there are fewer samples than ranks.
    """
    _num_for_all([a for a in tf.nest.flatten(arrays) if a is not None], size, "evaluate")
    return take(arrays, slice(rank, None, size))


def prediction_part(x: Any, rank: int, size: int) -> Any:
    """This rank's rows for a prediction: those of all ranks follow each other.

    Raises:
        UserError: there are fewer samples than ranks.
    """
    total = _num_for_all(x, size, "predict")
    return take(x, slice(rank * total // size, (rank + 1) * total // size))


def _num_for_all(x: Any, size: int, purpose: str) -> int:
    """The number of samples. Raises UserError if there are fewer than ranks."""
    total = num_samples(x)
    if total < size:
        raise UserError(
            f"{total} samples to {purpose} on {size} workers: each needs at least one; "
            "give more samples"
        )
    return total


def without_optionals(batch: Any) -> Any:
    """Replaces the empty Optional that Keras's array adapter yields for a sample_weight of None."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )


def batches_per_epoch(given: dict[str, Any]) -> int | None:
    """How many batches ``fit(**given)`` trains on in an epoch; None if unknown."""
    x, batches = given.get("x"), given.get("steps_per_epoch")
    if batches is None and isinstance(x, tf.data.Dataset):
        cardinality = int(x.cardinality())
        batches = cardinality if cardinality > 0 else None
    elif batches is None and isinstance(x, keras.utils.PyDataset):
        batches = x.num_batches
    elif batches is None and is_arrays(x):
        share = 1 - (given.get("validation_split") or 0)
        samples = int(num_samples(x) * share)
        batches = -(-samples // (given.get("batch_size") or 32))
    return batches
