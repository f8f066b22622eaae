"""Contracts: what a tf.data.Dataset is made of, and where TensorFlow places a shard."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import tensorflow as tf

from ooodist.compat import tensorflow_data
from tests.compat.contract import Contract


def _inputs() -> None:
    first, second = tf.data.Dataset.range(3), tf.data.TextLineDataset(["a", "b"])
    steps = list(tensorflow_data.steps_of(tf.data.Dataset.zip((first, second)).batch(2)))
    sources = [step for step in steps if len(list(tensorflow_data.steps_of(step))) == 1]
    assert sources[0] is first
    assert [int(source.cardinality()) for source in sources] == [3, 2]


def _seeds() -> None:
    tf.random.set_seed(None)  # as if the program had set none
    plain = tf.data.Dataset.range(3)
    assert tensorflow_data.shuffle_seeds(plain) is None
    assert tensorflow_data.shuffle_seeds(plain.shuffle(3)) == (0, 0)
    assert tensorflow_data.shuffle_seeds(plain.shuffle(3, seed=7)) not in (None, (0, 0))


def _auto_shard() -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, name)) for name in "abc"]
        for file in files:
            Path(file).write_text(f"{Path(file).name}\n")
        lines = tf.data.TextLineDataset(files)
        part = tensorflow_data.sharded_by_file(lines.batch(2), 0, 2)
        assert [batch.tolist() for batch in part.as_numpy_iterator()] == [[b"a", b"c"]]
        assert tensorflow_data.is_sharded(part.prefetch(1))
        with pytest.raises(tf.errors.NotFoundError):
            tensorflow_data.sharded_by_file(tf.data.Dataset.range(4), 0, 2)


def _shard() -> None:
    assert not tensorflow_data.is_sharded(tf.data.Dataset.range(4).batch(2))
    assert tensorflow_data.is_sharded(tf.data.Dataset.range(4).shard(2, 0).batch(2))


CONTRACTS = [
    Contract("Dataset._inputs", "tensorflow-cpu", tensorflow_data.steps_of, _inputs),
    Contract("_ShuffleDataset._seed", "tensorflow-cpu", tensorflow_data.shuffle_seeds, _seeds),
    Contract("_AutoShardDataset", "tensorflow-cpu", tensorflow_data.sharded_by_file, _auto_shard),
    Contract("_ShardDataset", "tensorflow-cpu", tensorflow_data.is_sharded, _shard),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_tensorflow_keeps(contract: Contract) -> None:
    contract.hold()
