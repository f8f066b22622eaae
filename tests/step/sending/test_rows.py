"""Gradients that travel as rows: the sums, and two real workers with each engine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.engines import kinds
from ooodist.engines.local import LocalEngine
from ooodist.step.sending.rows import RowGradients, add_up, pack, row_bytes
from tests.jobs import run_checks

WORKER = Path(__file__).with_name("rows_worker.py")
THE_NUMBERS = "the_numbers_are_those_of_tables"
ROWS, WIDTH = 9, 3


@pytest.mark.parametrize("engine", ["collective", "horovod"])
def test_two_workers(engine: str) -> None:
    printed = run_checks(engine, WORKER, [THE_NUMBERS])
    assert "net/table/embeddings travels as rows: 864 bytes, instead of 19,200" in printed
    if engine == "collective":
        assert "not as rows: batches do not all have the same shape" in printed
        assert "not as rows: the plan exchanges it in a bucket" in printed


def slices(numbers: list[int], seed: int) -> tf.IndexedSlices:
    values = np.random.default_rng(seed).normal(size=(len(numbers), WIDTH)).astype(np.float32)
    return tf.IndexedSlices(tf.constant(values), tf.constant(numbers), tf.constant([ROWS, WIDTH]))


@given(st.lists(st.lists(st.integers(0, ROWS - 1), min_size=7, max_size=7), min_size=2, max_size=4))
def test_rows_add_up_to_the_sum_of_the_tables_in_the_order_of_ranks(numbers: list[Any]) -> None:
    of_ranks = [slices(each, seed) for seed, each in enumerate(numbers)]
    expected = tf.zeros([ROWS, WIDTH])
    for each in of_ranks:
        expected += tf.convert_to_tensor(each)
    gathered = tf.concat([pack(each) for each in of_ranks], axis=0)
    assert gathered.shape == (7 * len(numbers), 1 + WIDTH)
    total = add_up(gathered, len(numbers), tf.TensorShape([ROWS, WIDTH]))
    assert total.numpy().tobytes() == expected.numpy().tobytes()


def test_numbers_of_rows_survive_as_floats() -> None:
    rows = 2**31 - 1  # 2**31 - 2 has the bits of a NaN, and small numbers those of denormals
    numbers = tf.constant([rows - 1, 1, rows - 2**23], tf.int64)
    packed = pack(tf.IndexedSlices(tf.ones([3, 2]), numbers, tf.constant([rows, 2], tf.int64)))
    assert tf.bitcast(packed[:, 0], tf.int32).numpy().tolist() == numbers.numpy().tolist()


def test_a_table_of_matrices() -> None:
    gradient = tf.IndexedSlices(tf.ones([2, 2, 3]), tf.constant([4, 4]), tf.constant([5, 2, 3]))
    assert row_bytes(gradient) == 2 * 7 * 4
    total = add_up(pack(gradient), 1, tf.TensorShape([5, 2, 3])).numpy()
    np.testing.assert_array_equal(total, tf.convert_to_tensor(gradient))
    assert total[4].tolist() == np.full((2, 3), 2.0).tolist()


def test_what_cannot_travel_has_no_bytes() -> None:
    shape = tf.constant([ROWS, WIDTH])
    half = tf.IndexedSlices(tf.ones([2, WIDTH], tf.float16), tf.constant([1, 2]), shape)
    assert [row_bytes(each) for each in (None, tf.ones([ROWS, WIDTH]), half)] == [0, 0, 0]

    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH])])
    def of_any_number(values):
        assert row_bytes(tf.IndexedSlices(values, tf.range(2), shape)) == 0
        return values

    of_any_number(tf.ones([2, WIDTH]))


class Gathering(LocalEngine):
    """Rank 0 of several, the others of which have other shapes if so asked."""

    kind = kinds.find("collective")  # which gathers
    size = 2

    def __init__(self, alike: bool = True) -> None:
        super().__init__()
        self._alike = alike

    def gather(self, array: np.ndarray) -> np.ndarray:
        return np.stack([array, array if self._alike else array + 1])


FIXED = (tf.TensorSpec([4, 6], tf.int32), tf.TensorSpec([4]))
ANY = (tf.TensorSpec([None, 6], tf.int32), tf.TensorSpec([4]))


@pytest.mark.parametrize(
    ("rows", "spec", "travels", "reason"),
    [
        (RowGradients(Gathering()), FIXED, True, "travels as rows: 32 bytes, instead of 108"),
        (RowGradients(Gathering()), ANY, False, "do not all have the same shape"),
        (RowGradients(Gathering()), None, False, "do not all have the same shape"),
        (RowGradients(Gathering(alike=False)), FIXED, False, "do not all have the same shape"),
        (RowGradients(Gathering(), "tapes"), FIXED, False, "not as rows: tapes"),
        (RowGradients(LocalEngine()), FIXED, False, "the engine local has no all-gather"),
    ],
)
def test_which_batches_allow_it(
    rows: RowGradients, spec: Any, travels: bool, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows.begin(spec)
    assert rows.may_travel == travels
    with caplog.at_level(logging.INFO, "ooodist"):
        for _ in range(2):  # said once
            chosen = rows.choose({"table": slices([1, 2], 0), "kernel": tf.ones([2])}, None)
    assert list(chosen) == ["table"] * travels
    assert caplog.text.count(reason) == 1


def test_steps_are_traced_anew_only_if_rows_were_seen_and_shapes_change() -> None:
    rows = RowGradients(Gathering())
    assert not rows.begin(FIXED)
    rows.choose({"table": tf.ones([ROWS, WIDTH])}, None)
    assert not rows.begin(None)
    assert not rows.begin(FIXED)
    rows.choose({"table": slices([1, 2], 0)}, None)
    assert not rows.begin(FIXED)
    assert [rows.begin(ANY), rows.begin(None), rows.begin(FIXED)] == [True, False, True]
    assert [rows.begin_any(), rows.begin_any(), rows.may_travel] == [True, False, False]


def test_more_rows_than_the_table_has_stay_a_table(caplog: pytest.LogCaptureFixture) -> None:
    rows = RowGradients(Gathering())
    rows.begin(FIXED)
    with caplog.at_level(logging.INFO, "ooodist"):
        assert rows.choose({"table": slices([1, 1, 1, 1, 1, 1, 1], 0)}, None) == {}
    assert "112 bytes of rows on each rank are no less to send" in caplog.text
