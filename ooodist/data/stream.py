"""Defines the global sample stream, and the part of it that each worker takes.

The stream is endless: a permutation of the training samples for epoch 0, then one for epoch 1,
and so on. Step s takes ``batch * size`` samples of it, and worker r the r-th slice of ``batch``:

    stream   | a permutation of all samples: epoch 0        | epoch 1 ...
    step     |       0       |       1       |       2       |
    worker   |   0   |   1   |   0   |   1   |   0   |   1   |

So the stream cut into pieces of ``batch`` samples gives worker r the pieces r, r + size,
r + 2 size, ... An epoch need not be a whole number of steps: nothing is dropped, and a step may
take the end of one epoch and the beginning of the next.

Everything depends only on (seed, epoch, position), never on TensorFlow's global seed: workers
may seed their dropout differently, and a resumed run sees what the uninterrupted one saw.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from ooodist.errors import UserError

LARGEST_SHUFFLE_SEED = 2**31 - 1


@dataclass(frozen=True)
class Share:
    """The part of the stream that a worker takes, from a given step on."""

    batch: int  # samples per worker and step
    rank: int
    size: int  # number of workers
    seed: int
    start_step: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"batch is {self.batch}: allowed is at least 1")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed is {self.seed}: allowed is 0 to 2^63 - 1")
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not one of {self.size} workers")
        if self.start_step < 0:
            raise ValueError(f"start_step {self.start_step} is negative")

    @property
    def global_batch(self) -> int:
        """The number of samples of all workers in one step."""
        return self.batch * self.size

    def start(self, num_samples: int) -> tuple[int, int]:
        """The epoch in which ``start_step`` begins, and the position in it."""
        return divmod(self.start_step * self.global_batch, num_samples)


def epoch_seed(seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """The seed of an epoch's random numbers: int64 of shape (2,)."""
    return tf.stack([tf.constant(seed, tf.int64), epoch])


def shuffled(elements: tf.data.Dataset, buffer: int, seed: tf.Tensor) -> tf.data.Dataset:
    """Shuffles ``elements`` through a buffer; ``seed``: integers of shape (2,).

    Call it while a function of a dataset is traced.
    """
    # Dataset.shuffle mixes in the seed of the graph it is built in. This one is set only for
    # the function's graph, so the program's tf.random.set_seed does not count.
    tf.random.set_seed(1)
    number = tf.random.stateless_uniform([], seed, 0, LARGEST_SHUFFLE_SEED, tf.int64)
    return elements.shuffle(buffer, seed=number, reshuffle_each_iteration=False)


def shuffled_indices(num_samples: int, share: Share) -> tf.data.Dataset:
    """The worker's part of the stream of sample numbers, for data that is read by number.

    The dataset has pairs of int32 (batch,): sample numbers in [0, num_samples), and for each a
    random number that belongs to its position in the stream (for augmentation).
    """
    first_epoch, position = share.start(num_samples)

    def epoch_order(epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seed = epoch_seed(share.seed, epoch)
        # Sorts stateless random keys: TensorFlow promises that their values stay the same
        # on every device and in later versions.
        keys = tf.random.stateless_uniform(
            [num_samples], seed, minval=None, maxval=None, dtype=tf.int64
        )
        order = tf.argsort(keys, stable=True)
        noise = tf.random.stateless_uniform(
            [num_samples], tf.random.fold_in(seed, 1), minval=None, maxval=None, dtype=tf.int32
        )
        begin = tf.where(epoch == first_epoch, position, 0)
        return order[begin:], noise[begin:]

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max).map(epoch_order)
    # Large sets take a second to sort, so the next epoch's order is made during this epoch.
    pieces = epochs.prefetch(1).rebatch(share.batch, drop_remainder=True)
    return pieces.shard(share.size, share.rank)


def shuffled_elements(
    elements: tf.data.Dataset,
    num_samples: int | None,
    shuffle_buffer: int,
    share: Share,
) -> tf.data.Dataset:
    """The worker's part of the stream, in batches, for data that is read in order.

    Each epoch is shuffled through a buffer of ``shuffle_buffer`` elements. A start in the middle
    of an epoch reads and drops the elements before it. Every worker reads all elements. Elements
    without an end (``num_samples`` None) are a single epoch.
    """
    first_epoch, position = 0, share.start_step * share.global_batch
    if num_samples is not None:
        first_epoch, position = share.start(num_samples)

    def epoch_elements(epoch: tf.Tensor) -> tf.data.Dataset:
        checked = elements
        if num_samples is not None:
            checked = elements.apply(tf.data.experimental.assert_cardinality(num_samples))
        return shuffled(checked, shuffle_buffer, epoch_seed(share.seed, epoch))

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
    stream = epochs.flat_map(epoch_elements).skip(position)
    return stream.batch(share.batch, drop_remainder=True).shard(share.size, share.rank)
