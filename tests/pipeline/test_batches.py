"""A batch in micro-batches: all of it, in its order, and only what the model takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.pipeline.batches import BatchSplitter, whole_microbatches


def two_inputs() -> keras.Model:
    first, second = keras.Input((3,), name="b"), keras.Input((2,), dtype="int32", name="a")
    x = keras.layers.Concatenate()([first, keras.layers.Embedding(9, 4)(second)[:, 0]])
    return keras.Model([first, second], keras.layers.Dense(1)(x))


def batch(samples: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(1)
    first = numbers.normal(size=(samples, 3)).astype(np.float32)
    return first, numbers.integers(0, 9, (samples, 2)), numbers.normal(size=(samples, 1))


def joined(parts: Sequence[Any]) -> list[np.ndarray]:
    each = [list(part.values()) if isinstance(part, dict) else part for part in parts]
    return [np.concatenate(those) for those in zip(*each, strict=True)]


@given(samples=st.integers(1, 12), microbatches=st.integers(1, 6))
def test_the_most_samples_that_can_be_split(samples: int, microbatches: int) -> None:
    first, second, y = batch(samples)
    found = whole_microbatches(((first, second), y), microbatches)
    number = max(n for n in range(samples + 1) if n % microbatches == 0) or samples
    for one, other in zip(tf.nest.flatten(found), (first, second, y), strict=True):
        np.testing.assert_array_equal(one, other[:number])


def test_inputs_of_a_batch_of_any_size() -> None:
    first, second, y = batch()
    splitter = BatchSplitter(two_inputs(), ((first, second), y), 2)
    for samples in (1, 5, 9):
        *x, _ = batch(samples)
        inputs = splitter.inputs_of(x)
        for one, other in zip(inputs, x, strict=True):
            np.testing.assert_array_equal(one, other)
        assert [each.dtype.name for each in inputs] == ["float32", "int32"]
    with pytest.raises(UserError, match="the data has 1 inputs"):
        splitter.inputs_of(first)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 6])
@pytest.mark.parametrize("weighted", [False, True])
def test_all_parts_together_are_the_batch(microbatches: int, weighted: bool) -> None:
    first, second, y = batch()
    given: tuple[Any, ...] = ((first, second), y)
    if weighted:
        given = (*given, np.arange(6.0))
    splitter = BatchSplitter(two_inputs(), given, microbatches)
    parts = splitter.split(given, [0, 1], targets=True)
    assert len(parts.inputs) == len(parts.targets) == microbatches
    for one, other in zip(joined(parts.inputs), (first, second), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(joined(parts.targets), given[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    inputs, targets = splitter.specs()
    assert [spec.shape[0] for spec in (*inputs, *targets)] == [6 // microbatches] * (3 + weighted)
    assert [spec.dtype.name for spec in inputs] == ["float32", "int32"]  # those of the model
    np.testing.assert_array_equal(splitter.first()[0][0], first[: 6 // microbatches])


def test_inputs_by_name_come_in_the_models_order() -> None:
    first, second, y = batch()
    splitter = BatchSplitter(two_inputs(), ({"a": second, "b": first}, y), 2)
    parts = splitter.split(({"a": second, "b": first}, y), [0, 1], targets=True)
    for one, other in zip(joined(parts.inputs), (first, second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_targets_keep_their_structure() -> None:
    first, second, y = batch()
    splitter = BatchSplitter(two_inputs(), ((first, second), {"u": y, "v": -y}), 2)
    assert tf.nest.map_structure(lambda _: 0, splitter.structure) == ({"u": 0, "v": 0},)


@pytest.mark.parametrize(
    ("given", "microbatches", "message"),
    [
        (batch(5), 2, "a batch has 5 samples, which cannot be split into 2 micro-batches"),
        ((batch()[0], None, batch()[2]), 2, "the data has 1 inputs, model .* takes 2: b, a"),
        ((batch()[1], batch()[1], batch()[2]), 2, r"the data has \(6, 2\) for input b of model"),
    ],
)
def test_what_cannot_be_split(given: Any, microbatches: int, message: str) -> None:
    first, second, y = given
    x = first if second is None else (first, second)
    with pytest.raises(UserError, match=message):
        BatchSplitter(two_inputs(), (x, y), microbatches)


@pytest.mark.parametrize("convert", [tf.sparse.from_dense, tf.RaggedTensor.from_tensor])
def test_sparse_and_ragged_inputs_are_named(convert: Any) -> None:
    first, second, y = batch()
    given = ((convert(first), second), y)
    kind = "SparseTensor" if convert is tf.sparse.from_dense else "RaggedTensor"
    with pytest.raises(UserError, match=f"input b of model .* is given a {kind}, but"):
        BatchSplitter(two_inputs(), given, 2)
    with pytest.raises(UserError, match=f"a batch is given a {kind}, but"):
        whole_microbatches(given, 2)


def test_a_smaller_batch_is_refused() -> None:
    first, second, y = batch()
    splitter = BatchSplitter(two_inputs(), ((first, second), y), 2)
    message = (
        re.escape("a batch has float32 (4, 3), ")
        + ".* the first one had "
        + re.escape("float32 (6, 3), ")
    )
    with pytest.raises(UserError, match=message):
        splitter.split(((first[:4], second[:4]), y[:4]), [0], targets=True)


def test_only_what_is_asked_for_is_split() -> None:
    first, second, y = batch()
    splitter = BatchSplitter(two_inputs(), ((first, second), y), 2)
    parts = splitter.split(((first, second), y), [1], targets=False)
    assert [list(part) for part in parts.inputs] == [[1], [1]]
    assert parts.targets == [[], []]
    np.testing.assert_array_equal(joined(parts.inputs)[0], second)
