"""Sharing out arrays: nothing lost, nothing twice."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.data.stream import Share
from ooodist.errors import UserError
from ooodist.trainer import arrays
from tests.thorough import few


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.zeros((4, 2)), True),
        ([np.zeros((4, 2)), np.zeros((4,))], True),
        ({"a": np.zeros((4, 2))}, True),
        (tf.zeros((4, 2)), True),
        (None, False),
        (tf.data.Dataset.range(3), False),
        ((n for n in range(3)), False),
        ([1, 2, 3], False),
    ],
)
def test_what_counts_as_arrays(x: object, expected: bool) -> None:
    assert arrays.is_arrays(x) is expected


def test_a_pydataset_is_not_arrays() -> None:
    assert not arrays.is_arrays(keras.utils.PyDataset())


def test_arrays_of_different_lengths_are_named() -> None:
    with pytest.raises(UserError, match=r"\[4, 5\]"):
        arrays.num_samples((np.zeros((4, 2)), np.zeros(5)))


@given(num=st.integers(2, 50), fraction=st.floats(0.05, 0.95))
def test_validation_split_is_that_of_keras(num: int, fraction: float) -> None:
    from keras.src.trainers.data_adapters import array_slicing

    x, y = np.arange(num), np.arange(num) * 10
    try:
        (xa, _, _), (xb, yb, none) = arrays.validation_split((x, y, None), fraction)
    except UserError:
        # Keras refuses an empty part too.
        with pytest.raises(ValueError, match=r"validation_split|not sufficient"):
            array_slicing.train_validation_split((x, y, None), fraction)
        return
    (ka, _, _), (kb, _, _) = array_slicing.train_validation_split((x, y, None), fraction)
    np.testing.assert_array_equal(xa, ka)
    np.testing.assert_array_equal(xb, kb)
    np.testing.assert_array_equal(yb, xb * 10)
    assert none is None


@pytest.mark.parametrize("y", [np.arange(6) % 3, np.eye(3)[[0, 2, 1]], np.array([[2], [0]])])
def test_class_weights_are_those_of_keras(y: np.ndarray) -> None:
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

    given = {0: 3, 2: 0.5}  # 1 for the other class
    x, same, weights = arrays.with_class_weight((y, y, None), given)
    assert x is same is y
    np.testing.assert_array_equal(weights, class_weight_to_sample_weights(y, given))
    assert weights.dtype == np.float32


@pytest.mark.parametrize(
    ("y", "sample_weight", "reason"),
    [
        (np.zeros(3), np.ones(3), "sample_weight is given too"),
        ([np.zeros(3), np.zeros(3)], None, "y is not one array"),
    ],
)
def test_class_weights_that_mean_nothing(y: Any, sample_weight: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        arrays.with_class_weight((np.zeros(3), y, sample_weight), {0: 1.0})


@given(num=st.integers(1, 40), size=st.integers(1, 6))
def test_each_sample_is_evaluated_on_one_rank(num: int, size: int) -> None:
    data = {"a": np.arange(num), "b": np.arange(num) * 2}
    if num < size:
        with pytest.raises(UserError, match=f"{num} samples to evaluate on {size} workers"):
            arrays.evaluation_part((data, None), 0, size)
        return
    parts = [arrays.evaluation_part((data, None), rank, size)[0] for rank in range(size)]
    assert sorted(n for part in parts for n in part["a"]) == list(range(num))
    assert all((part["b"] == part["a"] * 2).all() for part in parts)


@given(num=st.integers(1, 40), size=st.integers(1, 6))
def test_predictions_of_all_ranks_follow_each_other(num: int, size: int) -> None:
    data = [np.arange(num), np.arange(num) * 2]
    if num < size:
        with pytest.raises(UserError, match=f"{num} samples to predict on {size} workers"):
            arrays.prediction_part(data, 0, size)
        return
    parts = [arrays.prediction_part(data, rank, size) for rank in range(size)]
    for whole, those in zip(data, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(those), whole)
    lengths = {len(part[0]) for part in parts}
    assert max(lengths) - min(lengths) <= 1


def test_rows_of_strings_are_strings() -> None:
    """Keras takes no array of objects, which NumPy makes of a tensor of strings."""
    part, _ = arrays.evaluation_part((tf.constant(["a", "b", "c"]), np.arange(3)), 0, 2)
    assert tf.is_tensor(part)
    assert [*part.numpy()] == [b"a", b"c"]


def test_an_empty_optional_is_no_weight() -> None:
    batch = (tf.zeros((2,)), {"a": tf.ones((2,))}, tf.experimental.Optional.empty(None))
    x, y, sample_weight = arrays.without_optionals(batch)
    assert x is batch[0]
    assert y["a"] is batch[1]["a"]
    assert sample_weight is None


@few(15)
@given(
    num=st.integers(4, 30), batch=st.integers(1, 3), size=st.integers(1, 3), shuffle=st.booleans()
)
def test_the_ranks_streams_make_up_the_data(num: int, batch: int, size: int, shuffle: bool) -> None:
    seen: list[list[int]] = []
    if num < batch * size:
        with pytest.raises(UserError, match="reduce batch_size"):
            arrays.training_stream((np.arange(num),), Share(batch, 0, size, 1), shuffle)
        return
    steps = -(-2 * num // (batch * size))  # two epochs, rounded up
    for rank in range(size):
        stream, an_epoch = arrays.training_stream(
            (np.arange(num), np.arange(num) * 3), Share(batch, rank, size, 1), shuffle
        )
        assert an_epoch == num // (batch * size)
        assert stream.options().autotune.enabled is False  # ending a tuned iterator takes long
        batches = [(x.numpy(), y.numpy()) for x, y in stream.take(steps)]
        assert all((y == x * 3).all() for x, y in batches)
        seen.append([x.tolist() for x, _ in batches])
    stream_of_all = [n for step in zip(*seen, strict=True) for part in step for n in part]
    assert sorted(stream_of_all[:num]) == list(range(num))
    assert sorted(stream_of_all[num : 2 * num]) == list(range(num))
    if not shuffle:
        assert stream_of_all[:num] == list(range(num))
