"""The law of the global sample stream, for both ways of reading data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.data.stream import Share, shuffled_elements, shuffled_indices
from ooodist.errors import UserError
from tests.data.laws import batches
from tests.thorough import few

Reader = Callable[[int, int, Share], tf.data.Dataset]


def by_number(num_samples: int, buffer: int, share: Share) -> tf.data.Dataset:
    return shuffled_indices(num_samples, share).map(lambda index, noise: index)


def in_order(num_samples: int, buffer: int, share: Share) -> tf.data.Dataset:
    elements = tf.data.Dataset.range(num_samples)
    return shuffled_elements(elements, num_samples, buffer, share)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    """num_samples, shuffle buffer, batch, size, seed, start step."""
    batch, size = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    num_samples = draw(st.integers(batch * size, 60))
    seed = draw(st.integers(0, 2**63 - 1))
    return num_samples, draw(st.integers(1, 70)), batch, size, seed, draw(st.integers(0, 30))


@pytest.mark.parametrize("read", [by_number, in_order])
@given(job=jobs())
@few(8)
def test_workers_share_an_endless_stream_of_permutations(
    read: Reader, job: tuple[int, int, int, int, int, int]
) -> None:
    num_samples, buffer, batch, size, seed, start_step = job
    steps = max(-(-2 * num_samples // (batch * size)), start_step + 3)
    parts = [
        batches(read(num_samples, buffer, Share(batch, rank, size, seed)), steps)
        for rank in range(size)
    ]
    stream = np.concatenate([part[step] for step in range(steps) for part in parts])

    for epoch in (stream[:num_samples], stream[num_samples : 2 * num_samples]):
        assert sorted(epoch) == list(range(num_samples))

    one_worker = read(num_samples, buffer, Share(batch * size, 0, 1, seed))
    assert np.array_equal(np.concatenate(batches(one_worker, steps)), stream)

    rank = size - 1
    resumed = read(num_samples, buffer, Share(batch, rank, size, seed, start_step))
    assert np.array_equal(batches(resumed, 3), parts[rank][start_step : start_step + 3])


@pytest.mark.parametrize("read", [by_number, in_order])
def test_epochs_and_seeds_differ(read: Reader) -> None:
    first, second = batches(read(50, 50, Share(50, 0, 1, seed=1)), 2)
    (other,) = batches(read(50, 50, Share(50, 0, 1, seed=2)), 1)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, np.arange(50))


@pytest.mark.parametrize("read", [by_number, in_order])
def test_the_programs_own_random_seed_does_not_matter(read: Reader) -> None:
    tf.random.set_seed(1)
    expected = batches(read(50, 20, Share(10, 0, 1, seed=1)), 12)
    tf.random.set_seed(2)
    assert np.array_equal(batches(read(50, 20, Share(10, 0, 1, seed=1)), 12), expected)


def test_the_order_by_number_is_the_same_in_every_version() -> None:
    """A run must be resumable after an update of TensorFlow or of ooodist."""
    (indices, noise), _ = batches(shuffled_indices(10, Share(10, 0, 1, seed=1)), 2)
    assert indices.tolist() == [3, 8, 0, 6, 1, 5, 2, 9, 7, 4]
    assert noise.tolist()[:3] == [183354017, 1216493965, -1307443077]


def test_noise_belongs_to_the_position_in_the_stream() -> None:
    whole = np.concatenate([n for _, n in batches(shuffled_indices(30, Share(8, 0, 1, 3)), 10)])
    resumed = [n for _, n in batches(shuffled_indices(30, Share(4, 1, 2, 3, start_step=4)), 6)]
    expected = whole.reshape(10, 2, 4)[4:, 1]
    assert np.array_equal(resumed, expected)
    assert len(np.unique(whole)) == len(whole)


def test_data_that_changes_its_length_is_noticed() -> None:
    elements = tf.data.Dataset.range(9)
    stream = shuffled_elements(elements, 10, 5, Share(2, 0, 1, seed=1))
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 10"):
        batches(stream, 10)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 0, 1, 1), UserError, "batch is 0: allowed is at least 1"),
        ((1, 0, 1, -1), UserError, "seed is -1"),
        ((1, 2, 2, 1), ValueError, "rank 2 is not one of 2"),
        ((1, 0, 1, 1, -1), ValueError, "start_step -1"),
    ],
)
def test_impossible_shares(
    arguments: tuple[int, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Share(*arguments)
