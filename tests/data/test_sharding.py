"""ooodist.shard: by file where there are enough, else by element; equally many on all ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import ooodist
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from tests.ranks_in_threads import on_ranks

Make = Callable[[], tf.data.Dataset]
SAMPLES = 5  # of a file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("records")
    for number in range(4):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for sample in range(SAMPLES):
                writer.write(f"{number}-{sample}".encode())
    return sorted(map(str, folder.iterdir()))


def parts(monkeypatch: pytest.MonkeyPatch, make: Make, **options: Any) -> list[Any]:
    """What each of two ranks reads, or raises."""

    def work(engine: Engine) -> list[Any]:
        return list(ooodist.shard(make(), **options).take(100).as_numpy_iterator())

    return on_ranks(monkeypatch, work)


READERS: dict[str, Callable[[list[str]], tf.data.Dataset]] = {
    "reader": tf.data.TFRecordDataset,
    "reader of several": lambda files: tf.data.TFRecordDataset(files, num_parallel_reads=2),
    # Each rank shuffles the names in another order: the shard is before that.
    "pattern": lambda files: tf.data.Dataset.list_files(f"{Path(files[0]).parent}/*").interleave(
        tf.data.TFRecordDataset
    ),
    "known length": lambda files: tf.data.TFRecordDataset(files).apply(
        tf.data.experimental.assert_cardinality(4 * SAMPLES)
    ),
    "lines": tf.data.TextLineDataset,
}


@pytest.mark.parametrize("name", READERS)
def test_each_rank_reads_files_of_its_own(
    monkeypatch: pytest.MonkeyPatch, files: list[str], name: str, tmp_path: Path
) -> None:
    if name == "lines":
        files = [str(tmp_path / str(number)) for number in range(4)]
        for number, file in enumerate(files):
            Path(file).write_text("".join(f"{number}-{sample}\n" for sample in range(SAMPLES)))
    first, second = parts(monkeypatch, lambda: READERS[name](files))
    assert len(first) == len(second) == 2 * SAMPLES
    assert len({*first, *second}) == 4 * SAMPLES
    assert not {text[:1] for text in first} & {text[:1] for text in second}


@pytest.mark.parametrize(
    "make",
    [
        lambda files: tf.data.TFRecordDataset(files[:3]),  # one rank would have twice as many
        lambda files: tf.data.TFRecordDataset(files).take(4 * SAMPLES),  # of all, not of a rank's
        lambda files: tf.data.Dataset.from_tensor_slices(files * SAMPLES).map(tf.io.read_file),
    ],
    ids=["too few", "counted", "no records"],
)
def test_others_take_every_second_element(
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    make: Callable[[list[str]], tf.data.Dataset],
) -> None:
    every = list(make(files).as_numpy_iterator())
    assert parts(monkeypatch, lambda: make(files)) == [every[::2], every[1::2]]


def test_files_that_are_used_once_may_be_fewer_on_a_rank(
    monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    first, second = parts(
        monkeypatch, lambda: tf.data.TFRecordDataset(files[:3]), drop_remainder=False
    )
    assert (len(first), len(second)) == (2 * SAMPLES, SAMPLES)


def test_all_ranks_have_equally_many_unless_they_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> tf.data.Dataset:
        return tf.data.Dataset.range(7)

    assert parts(monkeypatch, make) == [[0, 2, 4], [1, 3, 5]]
    assert parts(monkeypatch, make, drop_remainder=False) == [[0, 2, 4, 6], [1, 3, 5]]
    endless = parts(monkeypatch, lambda: make().repeat())
    assert [len(part) for part in endless] == [100, 100]


def test_what_cannot_be_shared_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in parts(monkeypatch, lambda: tf.data.Dataset.range(1)):
        assert isinstance(error, UserError)
        assert "a data set of 1 element for 2 parts" in str(error)
    for error in on_ranks(monkeypatch, lambda engine: ooodist.shard([1, 2])):  # type: ignore[arg-type]
        assert "is given a list; it takes a tf.data.Dataset" in str(error)

    model = keras.Sequential(name="alone")
    for error in parts(monkeypatch, lambda: tf.data.Dataset.range(4), model=model):
        assert "is given model alone before ooodist.pipelined is" in str(error)

    def other(engine: Engine) -> tf.data.Dataset:
        return ooodist.shard(tf.data.Dataset.range(10 + engine.rank))

    for error in on_ranks(monkeypatch, other):
        assert "what ooodist.shard is given differs between ranks" in str(error)


def test_orders_that_differ_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, files: list[str]
) -> None:
    caplog.set_level(logging.WARNING, "ooodist")
    told = "shuffled before, in another order on each rank"
    parts(monkeypatch, lambda: tf.data.Dataset.range(8).shuffle(8).batch(2))
    assert caplog.text.count(told) == 1
    caplog.clear()
    parts(monkeypatch, lambda: tf.data.Dataset.range(8).shuffle(8, seed=1).batch(2))
    parts(monkeypatch, lambda: tf.data.TFRecordDataset(files).shuffle(8))  # of its own files
    assert not caplog.text


def test_a_single_worker_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ooodist.init("local")
    whole = tf.data.Dataset.range(7)
    assert ooodist.shard(whole) is whole
