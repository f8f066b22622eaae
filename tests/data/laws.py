"""What must hold for every kind of data; each kind's tests call this with real data."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from ooodist.config.data import DataConfig
from ooodist.data.kinds import load
from ooodist.data.reading import untuned
from ooodist.data.result import Data

SEED = 7


def batches(dataset: tf.data.Dataset, count: int | None = None) -> list[Any]:
    """The first `count` (or all) elements, as NumPy."""
    return list(islice(untuned(dataset).as_numpy_iterator(), count))


def load_one(config: DataConfig, batch: int = 4, rank: int = 0, size: int = 1, **more: Any) -> Data:
    return load(config, batch=batch, rank=rank, size=size, seed=SEED, **more)


def assert_equal(left: Any, right: Any) -> None:
    """Bitwise, also within dictionaries and tuples."""
    tf.nest.map_structure(np.testing.assert_array_equal, left, right)


def joined(parts: list[Any]) -> Any:
    """Batches one behind the other."""
    return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def assert_laws(config: DataConfig, batch: int = 4) -> None:
    """Workers share the stream that one worker sees; resuming skips; validation is shared out."""
    size, resumed_step = 2, 3
    one = load_one(config, batch * size)
    steps = 2 * (one.num_samples // (batch * size)) + 2  # goes beyond the second epoch's end
    expected = batches(one.train, steps)
    workers = [load_one(config, batch, rank, size) for rank in range(size)]
    seen = zip(*(batches(worker.train, steps) for worker in workers), strict=True)
    for whole, parts in zip(expected, seen, strict=True):
        assert_equal(joined(list(parts)), whole)

    resumed = load_one(config, batch * size, start_step=resumed_step)
    for again, whole in zip(batches(resumed.train, 2), expected[resumed_step:], strict=False):
        assert_equal(again, whole)
    late = load_one(config, batch * size, start_step=steps - 1)
    assert_equal(batches(late.train, 1)[0], expected[-1])

    for data in (one, *workers):
        assert data.num_samples == one.num_samples
        assert data.steps_per_epoch == one.num_samples // (batch * size)
    assert one.train.element_spec[0] is not None
    for spec in tf.nest.flatten(one.train.element_spec):
        assert spec.shape.is_fully_defined()
    assert_validation_shared(one, workers)


def assert_validation_shared(one: Data, workers: list[Data]) -> None:
    if one.validation is None:
        assert one.num_validation_samples == 0
        assert all(worker.validation is None for worker in workers)
        return
    whole = joined(batches(one.validation))
    assert len(tf.nest.flatten(whole[1])[0]) == one.num_validation_samples
    for rank, worker in enumerate(workers):
        mine = joined(batches(worker.validation))
        assert_equal(mine, tf.nest.map_structure(lambda a, r=rank: a[r :: len(workers)], whole))
        assert_equal(joined(batches(worker.validation)), mine)  # the same order again


def epoch_targets(data: Data, batch: int) -> np.ndarray:
    """The targets of the first epoch, in the order of the stream (for one worker)."""
    steps = -(-data.num_samples // batch)
    return joined(batches(data.train, steps))[1][: data.num_samples]
