from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooodist.config.data import FunctionConfig
from ooodist.errors import UserError
from tests.data.laws import assert_equal, assert_laws, batches, epoch_targets, joined, load_one

MODULE = """
import keras
import numpy as np
import tensorflow as tf

class Batches(keras.utils.PyDataset):
    def __init__(self, samples, size=6):
        super().__init__()
        self.samples, self.size = samples, size

    def __len__(self):
        return -(-self.samples // self.size)

    def __getitem__(self, index):
        numbers = np.arange(self.samples)[index * self.size :][: self.size]
        return {"a": numbers.astype("float32"), "b": numbers[:, None]}, numbers % 4

def py_datasets():
    return Batches(20), Batches(5)

class Alone(Batches):
    def __getitem__(self, index):
        return np.zeros(3)

def alone():
    return Alone(20)

def numbers(count=20, classes=4):
    x = tf.reshape(tf.range(2 * count, dtype=tf.float32), (count, 2))
    return tf.data.Dataset.from_tensor_slices((x, tf.range(count) % classes))

def pair(count=20):
    return numbers(count), numbers(5)

def sentences():
    tokens = tf.reshape(tf.range(60) % 7, (12, 5))
    return tf.data.Dataset.from_tensor_slices((tokens, tokens))

def dictionary():
    x = {"a": tf.range(8.0), "b": tf.reshape(tf.range(16.0), (8, 2))}
    return tf.data.Dataset.from_tensor_slices((x, tf.range(8.0)))

def unknown_length():
    return numbers().filter(lambda x, y: y < 3)

def empty():
    return numbers().take(0)

def endless():
    return numbers().repeat()

def endless_validation():
    return numbers(), numbers().repeat()

def batched():
    return numbers().batch(3)

def triple():
    return tf.data.Dataset.zip((tf.data.Dataset.range(9),) * 3)

def unlike():
    return numbers(), sentences()

def negative():
    return numbers().map(lambda x, y: (x, y - 1))

def array():
    return tf.range(3)

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_data.py").write_text(MODULE)
    (tmp_path / "broken_data.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path))


def config(function: str, **more: Any) -> FunctionConfig:
    return FunctionConfig(f"users_data:{function}", **more)


@pytest.mark.parametrize(
    "function", ["pair", "unknown_length", "sentences", "dictionary", "py_datasets"]
)
def test_laws(function: str) -> None:
    assert_laws(config(function, shuffle_buffer=6), batch=2)


def test_arguments_and_what_is_found_out() -> None:
    data = load_one(config("numbers", arguments={"count": 30, "classes": 7}), batch=30)
    assert (data.num_samples, data.num_classes, data.task) == (30, 7, "classification")
    assert data.validation is None
    (x, y), *_ = batches(data.train, 1)
    assert np.array_equal(y, x[:, 0] // 2 % 7)
    assert sorted(x[:, 0]) == list(range(0, 60, 2))


def test_lengths_and_classes_that_are_not_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ooodist")
    data = load_one(config("unknown_length"))
    assert (data.num_samples, data.num_classes) == (15, 3)
    assert np.bincount(epoch_targets(data, 4)).tolist() == [5, 5, 5]
    assert "counted 15 samples of users_data:unknown_length" in caplog.text
    assert "found 3 classes" in caplog.text


def test_a_stream_has_no_end_and_goes_on_where_it_was() -> None:
    stream = config("endless", num_classes=4, shuffle_buffer=6)
    whole = load_one(stream, batch=8)
    assert (whole.num_samples, whole.steps_per_epoch) == (None, None)
    assert "endless training" in whole.description
    expected = batches(whole.train, 9)
    assert_equal(batches(load_one(stream, batch=8, start_step=6).train, 3), expected[6:])
    halves = [batches(load_one(stream, 4, rank, 2).train, 9) for rank in range(2)]
    assert_equal([joined(list(parts)) for parts in zip(*halves, strict=True)], expected)


def test_validation() -> None:
    data = load_one(config("pair"))
    assert (data.num_samples, data.num_validation_samples) == (20, 5)
    assert joined(batches(data.validation))[1].tolist() == [0, 1, 2, 3, 0]


def test_language() -> None:
    data = load_one(config("sentences"))
    assert (data.task, data.num_classes) == ("language", 7)


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        ("nothing", {}, "module users_data has no 'nothing'"),
        ("number", {}, "number is a int; it must be a function"),
        (
            "numbers",
            {"arguments": {"size": 3}},
            r"users_data:numbers\(count=20, cl.* cannot be called with",
        ),
        ("empty", {}, "the dataset is empty"),
        ("endless", {}, "data.num_classes is missing: the data set of users_data:endless is endl"),
        ("endless_validation", {}, "the validation dataset is endless"),
        ("alone", {}, "a PyDataset whose batch 0 is a ndarray of 3; it must be a pair"),
        ("batched", {}, "not batched: ooodist makes the batches"),
        ("triple", {}, r"they must be pairs \(x, y\)"),
        ("unlike", {}, "they must be alike"),
        ("array", {}, "returned EagerTensor .*: it must return a tf.data.Dataset"),
        ("numbers", {"task": "regression", "num_classes": 3}, "regression has no classes"),
        ("dictionary", {"num_classes": 3}, "data.num_classes is 3, but y"),
    ],
)
def test_errors(function: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_one(config(function, **settings))


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        ("no_such_module:f", UserError, "there is no Python module 'no_such_module'"),
        ("broken_data:f", ModuleNotFoundError, "no_such_package"),  # with its traceback
    ],
)
def test_modules_that_are_missing(function: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        load_one(FunctionConfig(function))


@pytest.mark.parametrize(
    "settings", [config("negative"), config("numbers", num_classes=3)], ids=["negative", "large"]
)
def test_labels_out_of_range_end_the_training(settings: FunctionConfig) -> None:
    with pytest.raises(Exception, match=r"a label of users_data:.* is out of range"):
        batches(load_one(settings).train, 5)
