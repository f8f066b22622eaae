from __future__ import annotations

import pytest
import tensorflow as tf

from ooodist.config.data import DigitsConfig, TextConfig
from ooodist.data.kinds import load
from ooodist.errors import UserError
from tests.data.laws import batches, load_one


def test_a_batch_larger_than_the_data() -> None:
    with pytest.raises(
        UserError, match=r"batch 1000 x 2 workers needs at least 2000 .*digits has "
    ):
        load_one(DigitsConfig(), batch=1000, size=2)
    with pytest.raises(UserError, match=r"reduce batch \(at most 719\)"):
        load_one(DigitsConfig(), batch=720, size=2)


def test_more_workers_than_samples() -> None:
    config = TextConfig(sequence_length=200_000)
    with pytest.raises(UserError, match="text has 2: use fewer workers"):
        load_one(config, batch=1, size=4)


def test_fewer_validation_samples_than_workers() -> None:
    config = TextConfig(sequence_length=40_000, validation_fraction=0.1)
    with pytest.raises(UserError, match="text has 1 validation samples for 2 workers"):
        load_one(config, batch=1, size=2)


def test_what_is_no_config() -> None:
    with pytest.raises((TypeError, AttributeError)):
        load("digits", batch=1, rank=0, size=1, seed=1)  # type: ignore[arg-type]


def test_data_stays_in_host_memory() -> None:
    (batch, *_) = load_one(DigitsConfig()).train.take(1)
    assert all(tensor.device.endswith("CPU:0") for tensor in batch)


def test_a_distribution_strategy_does_not_share_out_again() -> None:
    options = load_one(DigitsConfig()).train.options()
    off = tf.data.experimental.AutoShardPolicy.OFF
    assert options.experimental_distribute.auto_shard_policy == off
    assert options.deterministic


def test_nothing_is_tuned_while_it_is_read() -> None:
    """An iterator that is tuned often takes as long to end as it was in use."""
    data = load_one(DigitsConfig())
    for dataset in (data.train, data.validation):
        assert dataset.options().autotune.enabled is False


def test_a_training_dataset_can_be_read_twice() -> None:
    data = load_one(DigitsConfig())
    assert [y.tolist() for _, y in batches(data.train, 3)] == [
        y.tolist() for _, y in batches(data.train, 3)
    ]
