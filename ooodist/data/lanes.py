"""The sample stream of data in many files, of which each worker reads only some.

The places of a step are divided into lanes, and the files of an epoch, in its order, into as many
stretches; each lane takes its samples from its own stretch::

    step        |     lane 0    |     lane 1    |     lane 2    |     lane 3    |
    2 workers   |            worker 0           |            worker 1           |
    files       | f7 | f2 | f1  | f5 | f0 | f9  | f8 | f3 | f11 | f4 | f10 | f6 |

A worker reads the lanes that contain its places (and skips to where a stretch begins), and
shuffles only these. The number of lanes depends on the files and on the samples per step, never on
the number of workers, so the stream is the same for any number of them (``stream.py`` defines it).
With fewer files there are fewer lanes; a single file is read by every worker. A run that is resumed
with another number of samples per step has another stream: in its first epoch some samples come
again, others not.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from ooodist.data.stream import Share, epoch_seed, shuffled

MOST_LANES = 64  # a single worker has all of them open at a time
FILES_AT_ONCE = 8  # records of this many files are mixed before the shuffle


@dataclass(frozen=True)
class RecordFile:
    """A TFRecord file, or a part of it.

    ``skip`` records at its beginning are left out; the ``take`` records after them are used.
    """

    path: str
    take: int
    skip: int = 0


@dataclass(frozen=True)
class RecordFiles:
    """TFRecord files with at least one record in total; ``compression``: "" or "GZIP"."""

    files: tuple[RecordFile, ...]
    compression: str

    def in_order(self) -> tf.data.Dataset:
        """All records, one file after the other: serialized, strings of shape ()."""
        paths, skips, takes = zip(
            *((file.path, file.skip, file.take) for file in self.files), strict=True
        )
        parts = (list(paths), tf.constant(skips, tf.int64), tf.constant(takes, tf.int64))
        return tf.data.Dataset.from_tensor_slices(parts).flat_map(self.part)

    def part(self, path: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.data.Dataset:
        """``take`` records of a file, after the first ``skip``."""
        return tf.data.TFRecordDataset(path, self.compression).skip(skip).take(take)

    def shuffled(self, buffer: int, share: Share) -> tf.data.Dataset:
        """The worker's part of the stream in batches: serialized records, strings (batch,).

        Each epoch takes the files in a new order and shuffles their records through buffers of
        ``buffer`` records in total.
        """
        lanes = Lanes(self, buffer, share)
        first = share.rank * share.batch // lanes.places
        last = ((share.rank + 1) * share.batch - 1) // lanes.places
        number = last - first + 1
        records = tf.data.Dataset.range(first, last + 1).interleave(
            lanes.stream,
            cycle_length=number,
            block_length=lanes.places,
            num_parallel_calls=min(number, FILES_AT_ONCE),
            deterministic=True,
        )
        # The first and the last lane may also have places of neighboring workers.
        begin = share.rank * share.batch - first * lanes.places
        steps = records.batch(number * lanes.places, drop_remainder=True)
        return steps.map(lambda step: step[begin : begin + share.batch])


class Lanes:
    """Locates the samples of each lane, independently of ``share.rank`` and ``share.size``."""

    def __init__(self, source: RecordFiles, shuffle_buffer: int, share: Share) -> None:
        files = source.files
        most = min(MOST_LANES, len(files))
        places = share.global_batch
        self.count = max(count for count in range(1, most + 1) if places % count == 0)
        self.places = places // self.count  # places of each lane in a step
        self._source = source
        self._buffer = -(-shuffle_buffer // self.count)
        self._share = share
        self._paths = tf.constant([file.path for file in files])
        self._skips = tf.constant([file.skip for file in files], tf.int64)
        self._takes = tf.constant([file.take for file in files], tf.int64)
        self._num_samples = sum(file.take for file in files)

    def stream(self, lane: tf.Tensor) -> tf.data.Dataset:
        """The endless records of a lane (int64 scalar), from ``share.start_step`` on."""
        share, total = self._share, self._num_samples
        first_epoch, _ = share.start(total)
        start = tf.constant(first_epoch * total, tf.int64)
        done = share.start_step * self.places  # since the beginning; minus those of earlier epochs:
        done -= self._before(start, lane + 1) - self._before(start, lane)

        def epoch_records(epoch: tf.Tensor) -> tf.data.Dataset:
            begin, end = self._begin(epoch, lane), self._begin(epoch, lane + 1)
            seed = epoch_seed(share.seed, epoch)
            records = self._records(tf.random.fold_in(seed, 1), begin, end)
            records = records.apply(tf.data.experimental.assert_cardinality(end - begin))
            return shuffled(records, self._buffer, tf.random.fold_in(seed, lane + 2))

        epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
        return epochs.flat_map(epoch_records).skip(done)

    def _before(self, samples: tf.Tensor, lane: tf.Tensor) -> tf.Tensor:
        """How many of the first ``samples`` of the stream are in lanes before this one."""
        steps, rest = samples // self._share.global_batch, samples % self._share.global_batch
        return steps * lane * self.places + tf.minimum(rest, lane * self.places)

    def _begin(self, epoch: tf.Tensor, lane: tf.Tensor) -> tf.Tensor:
        """Where the lane's records begin among all records of the epoch."""
        start = epoch * self._num_samples
        return self._before(start + self._num_samples, lane) - self._before(start, lane)

    def _records(self, seed: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
        """Records ``begin`` to ``end`` of all files, in an order that the seed decides."""
        keys = tf.random.stateless_uniform([self._takes.shape[0]], seed)
        order = tf.argsort(keys, stable=True)
        paths, skips, takes = (
            tf.gather(values, order) for values in (self._paths, self._skips, self._takes)
        )
        ends = tf.cumsum(takes)
        unwanted = tf.maximum(begin - (ends - takes), 0)  # at the beginning of a file
        wanted = tf.minimum(ends, end) - (ends - takes) - unwanted
        here = wanted > 0
        parts = [tf.boolean_mask(values, here) for values in (paths, skips + unwanted, wanted)]
        return tf.data.Dataset.from_tensor_slices(tuple(parts)).interleave(
            self._source.part, cycle_length=-(-FILES_AT_ONCE // self.count)
        )
