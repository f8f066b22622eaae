"""Makes one worker's datasets of a kind's samples.

A kind of data provides either an :class:`IndexedSource` (samples can be read by number) or a
:class:`SequentialSource` (they can only be read one after the other).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ooodist.data.lanes import RecordFiles
from ooodist.data.reading import map_batches, map_elements, untuned
from ooodist.data.result import Data
from ooodist.data.stream import Share, shuffled_elements, shuffled_indices
from ooodist.errors import UserError

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Meaning:
    """Describes the samples, for the log and for the model; see :class:`Data`."""

    kind: str
    description: str
    task: str
    num_classes: int | None
    num_tokens: int | None = None


@dataclass(frozen=True)
class IndexedSource:
    """Samples that can be read by number, such as arrays in memory or a list of files."""

    meaning: Meaning
    train: np.ndarray  # numbers of the training samples
    validation: np.ndarray | None  # numbers of the validation samples; None: no validation
    read: Callable[[tf.Tensor], Pair]  # numbers of shape (n,) -> x, y
    one_by_one: bool = False  # `read` takes a single number; samples are then read in parallel
    read_validation: Callable[[tf.Tensor], Pair] | None = None  # None: the same as `read`
    augment: Callable[[Pair, tf.Tensor], Pair] | None = None  # x, y and noise -> x, y

    def build(self, share: Share) -> Data:
        """Builds the worker's datasets; raises UserError if there are too few samples."""
        num_validation = None if self.validation is None else len(self.validation)
        check_enough(self.meaning.kind, len(self.train), num_validation, share)
        numbers = tf.constant(self.train)

        def read(indices: tf.Tensor, noise: tf.Tensor) -> Pair:
            pair = self.read(tf.gather(numbers, indices))
            return pair if self.augment is None else self.augment(pair, noise)

        train = shuffled_indices(len(self.train), share)
        if self.one_by_one:
            train = map_elements(train.unbatch(), read)
            train = train.batch(share.batch, drop_remainder=True)
        else:
            train = map_batches(train, read)

        validation = None
        if self.validation is not None:
            read_validation = self.read_validation or self.read
            mine = tf.data.Dataset.from_tensor_slices(self.validation[share.rank :: share.size])
            if self.one_by_one:
                validation = map_elements(mine, read_validation).batch(share.batch)
            else:
                validation = map_batches(mine.batch(share.batch), read_validation)
        return _data(self.meaning, share, train, len(self.train), validation, num_validation)


@dataclass(frozen=True)
class SequentialSource:
    """Samples that can only be read in order; only the worker's own are passed to `decode`."""

    meaning: Meaning
    train: tf.data.Dataset | RecordFiles  # all training elements
    num_samples: int | None  # None: the elements have no end
    validation: tf.data.Dataset | None
    num_validation: int | None
    shuffle_buffer: int
    decode: Callable[..., Pair]  # one element -> x, y

    def build(self, share: Share) -> Data:
        """Builds the worker's datasets; raises UserError if there are too few samples."""
        check_enough(self.meaning.kind, self.num_samples, self.num_validation, share)
        if isinstance(self.train, RecordFiles):
            train = self.train.shuffled(self.shuffle_buffer, share)
        else:
            train = shuffled_elements(self.train, self.num_samples, self.shuffle_buffer, share)
        train = map_elements(train.unbatch(), self.decode)
        train = train.batch(share.batch, drop_remainder=True)
        validation = self.validation
        if validation is not None:
            mine = validation.shard(share.size, share.rank)
            validation = map_elements(mine, self.decode).batch(share.batch)
        return _data(self.meaning, share, train, self.num_samples, validation, self.num_validation)


def check_enough(
    kind: str, num_samples: int | None, num_validation: int | None, share: Share
) -> None:
    """Raises UserError unless a step and every worker's validation part can be filled."""
    if num_samples is not None and num_samples < share.global_batch:
        largest = num_samples // share.size
        way_out = f"reduce batch (at most {largest})" if largest else "use fewer workers"
        raise UserError(
            f"batch {share.batch} x {share.size} workers needs at least {share.global_batch} "
            f"training samples, {kind} has {num_samples}: {way_out}, or give more data"
        )
    if num_validation is not None and num_validation < share.size:
        raise UserError(
            f"{kind} has {num_validation} validation samples for {share.size} workers, each needs "
            "at least one: give more validation data, or none (data.validation_fraction: 0)"
        )


def _data(
    meaning: Meaning,
    share: Share,
    train: tf.data.Dataset,
    num_samples: int | None,
    validation: tf.data.Dataset | None,
    num_validation: int | None,
) -> Data:
    options = tf.data.Options()
    # The stream is already divided here; a tf.distribute strategy must not do it again.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    def finished(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return untuned(dataset.prefetch(tf.data.AUTOTUNE)).with_options(options)

    x_spec = train.element_spec[0]
    return Data(
        train=finished(train),
        validation=None if validation is None else finished(validation),
        steps_per_epoch=None if num_samples is None else num_samples // share.global_batch,
        num_samples=num_samples,
        num_validation_samples=num_validation or 0,
        description=_describe(meaning, num_samples, num_validation),
        task=meaning.task,
        num_classes=meaning.num_classes,
        num_tokens=meaning.num_tokens,
        input_spec=tf.nest.map_structure(
            lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), x_spec
        ),
    )


def _describe(meaning: Meaning, num_samples: int | None, num_validation: int | None) -> str:
    validation = "no" if num_validation is None else f"{num_validation:,}"
    training = "endless" if num_samples is None else f"{num_samples:,}"
    return (
        f"{meaning.kind}: {training} training and {validation} validation samples, "
        f"{meaning.description}"
    )
