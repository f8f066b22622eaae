from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from ooodist.config.data import FeatureConfig, TFRecordConfig
from ooodist.data.kinds.records import count_records
from ooodist.errors import UserError
from tests.data.laws import assert_laws, batches, epoch_targets, joined, load_one

NUMBER = {"number": FeatureConfig("x", (2,)), "label": FeatureConfig("y", dtype="int64")}


def example(**features: Any) -> bytes:
    """A serialized Example; bytes, integers or floats."""
    stored = {}
    for name, value in features.items():
        if isinstance(value, bytes):
            stored[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        elif isinstance(value, int):
            stored[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        else:
            stored[name] = tf.train.Feature(float_list=tf.train.FloatList(value=value))
    return tf.train.Example(features=tf.train.Features(feature=stored)).SerializeToString()


def write(path: Path, records: Sequence[bytes], compression: str | None = None) -> Path:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def number(label: int) -> bytes:
    return example(number=[float(label), 0.5], label=label)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """30 training records in 3 files, and 5 for validation; the label is the record's number."""
    for file in range(3):
        labels = range(10 * file, 10 * file + 10)
        write(tmp_path / f"train-{file}.tfrecord", [number(label) for label in labels])
    write(tmp_path / "validation.tfrecord", [number(label) for label in range(5)])
    return tmp_path


def config(folder: Path, **more: Any) -> TFRecordConfig:
    settings: dict[str, Any] = {"features": NUMBER, "num_classes": 30, "shuffle_buffer": 7}
    return TFRecordConfig(str(folder / "train-*.tfrecord"), **(settings | more))


def test_laws(folder: Path) -> None:
    assert_laws(config(folder, validation_pattern=str(folder / "validation.tfrecord")))


def test_an_epoch_has_every_record_once_and_files_are_mixed(folder: Path) -> None:
    data = load_one(config(folder))
    targets = epoch_targets(data, 4)
    assert sorted(targets) == list(range(30))
    assert len({int(label) // 10 for label in targets[:10]}) == 3
    assert (data.task, data.num_classes, data.num_samples) == ("classification", 30, 30)
    assert data.validation is None
    second = joined(batches(data.train, 15))[1][30:]
    assert sorted(second) == list(range(30))
    assert not np.array_equal(second, targets)


def test_each_of_two_workers_reads_half_of_the_files(tmp_path: Path) -> None:
    """24 files of 5 records are 8 lanes of 3 files; each worker has 4 lanes."""
    for file in range(24):
        write(tmp_path / f"train-{file:02}.tfrecord", [number(5 * file + n) for n in range(5)])
    settings = config(tmp_path, num_classes=120)
    assert_laws(settings)
    read = [joined(batches(load_one(settings, 4, rank, 2).train, 15))[1] for rank in range(2)]
    assert sorted(np.concatenate(read)) == list(range(120))
    assert [len(set(labels // 5)) for labels in read] == [12, 12]
    # It needs no other file: in the first epoch it does not notice that they are gone.
    kept, data = set(read[0] // 5), load_one(settings, 4, 0, 2)
    for file in set(range(24)) - kept:
        (tmp_path / f"train-{file:02}.tfrecord").unlink()
    assert np.array_equal(joined(batches(data.train, 12))[1], read[0][:48])


def test_lanes_that_no_worker_has_alone(tmp_path: Path) -> None:
    """Three workers of batch 2 and 2 files: 2 lanes of 3 places, of which one has two workers."""
    for file in range(2):
        records = [number(label) for label in range(13 * file, 13 * file + 13)]
        write(tmp_path / f"train-{file}.tfrecord", records)
    settings = config(tmp_path)
    whole = batches(load_one(settings, 6).train, 10)
    parts = [batches(load_one(settings, 2, rank, 3).train, 10) for rank in range(3)]
    for step, (_, y) in enumerate(whole):
        assert np.array_equal(joined([part[step] for part in parts])[1], y)
    labels = joined(whole)[1]
    assert sorted(labels[:26]) == sorted(labels[26:52]) == list(range(26))


def test_validation_is_in_the_files_order(folder: Path) -> None:
    data = load_one(config(folder, validation_pattern=str(folder / "validation.tfrecord")))
    assert joined(batches(data.validation))[1].tolist() == [0, 1, 2, 3, 4]


def test_gzip(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tfrecord", [number(label) for label in range(30)], "GZIP")
    assert sorted(epoch_targets(load_one(config(tmp_path, compression="gzip")), 4)) == list(
        range(30)
    )
    with pytest.raises(UserError, match=r"train-0.tfrecord is cut off or no TFRecord file"):
        load_one(config(tmp_path))


def test_uncompressed_files_are_not_gzip(folder: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read .*data.compression gzip"):
        load_one(config(folder, compression="gzip"))


def encoded(array: np.ndarray, file_format: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, file_format)
    return file.getvalue()


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_encoded_images(tmp_path: Path, encoding: str) -> None:
    images = [np.full((8, 6, 3), 10 * label, np.uint8) for label in range(8)]
    records = [
        example(image=encoded(image, encoding), label=label) for label, image in enumerate(images)
    ]
    write(tmp_path / "train-0.tfrecord", records)
    features = {
        "image": FeatureConfig("x", (4, 4, 3), encoding=encoding),
        "label": FeatureConfig("y", dtype="int64"),
    }
    data = load_one(config(tmp_path, features=features), batch=8)
    (x, y), *_ = batches(data.train, 1)
    assert x.shape == (8, 4, 4, 3)
    assert np.abs(x - y[:, None, None, None] * 10 / 255).max() < 0.01


def test_laws_of_packed_images_and_raw_arrays(tmp_path: Path) -> None:
    """Of all encodings, in a packed file."""
    pixels = [np.full((8, 6, 3), 10 * label, np.uint8) for label in range(8)]
    records = [
        example(
            png=encoded(each, "png"),
            jpeg=encoded(each, "jpeg"),
            raw=each.tobytes(),
            number=[label / 2],
        )
        for label, each in enumerate(pixels)
    ]
    write(tmp_path / "train-0.tfrecord", records, "GZIP")
    features = {
        "png": FeatureConfig("x", (4, 4, 3), encoding="png"),
        "jpeg": FeatureConfig("x", (4, 4, 3), encoding="jpeg"),
        "raw": FeatureConfig("x", (8, 6, 3), "uint8", "raw"),
        "number": FeatureConfig("y", (1,)),
    }
    settings = config(tmp_path, features=features, num_classes=None, compression="gzip")
    assert_laws(settings, batch=2)


def test_raw_arrays_and_several_inputs(tmp_path: Path) -> None:
    records = [
        example(
            image=np.full((2, 3), label, np.uint8).tobytes(),
            tokens=np.arange(label, label + 4, dtype=np.int64).tobytes(),
            target=[label / 2],
        )
        for label in range(8)
    ]
    write(tmp_path / "train-0.tfrecord", records)
    features = {
        "image": FeatureConfig("x", (2, 3), "uint8", "raw"),
        "tokens": FeatureConfig("x", (4,), "int64", "raw"),
        "target": FeatureConfig("y", (1,)),
    }
    settings = config(tmp_path, features=features, num_classes=None)
    data = load_one(settings, batch=8)
    (x, y), *_ = batches(data.train, 1)
    assert (data.task, data.num_classes) == ("regression", None)
    assert data.input_spec == {
        "image": tf.TensorSpec((2, 3), tf.float32),
        "tokens": tf.TensorSpec((4,), tf.int32),
    }
    assert np.allclose(x["image"][:, 1, 2] * 255, y[:, 0] * 2)
    assert np.array_equal(x["tokens"][:, 3], y[:, 0] * 2 + 3)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"image": FeatureConfig("x", (2,)), "label": NUMBER["label"]},
            r"does not fit data.features .*it holds label \(1 int64\), number \(2 float\)",
        ),
        ({"number": FeatureConfig("x", (3,)), "label": NUMBER["label"]}, "does not fit"),
        (
            {"number": FeatureConfig("x", (2,), "float32", "raw"), "label": NUMBER["label"]},
            "does not fit",
        ),
        ({"number": NUMBER["number"], "label": FeatureConfig("y")}, "does not fit"),
    ],
)
def test_features_that_the_records_do_not_have(
    folder: Path, features: dict[str, FeatureConfig], message: str
) -> None:
    classes = None if features["label"].dtype == "float32" else 30
    with pytest.raises(UserError, match=message):
        load_one(config(folder, features=features, num_classes=classes))


def test_records_of_something_else(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tfrecord", [b"\xff\xfe no example"] * 9)
    with pytest.raises(UserError, match=r"train-0.tfrecord is no tf.train.Example"):
        load_one(config(tmp_path))


def test_labels_out_of_range(folder: Path) -> None:
    (folder / "train-0.tfrecord").unlink()
    with pytest.raises(UserError, match=r"label of tfrecord is out of range: allowed are 0 to 4"):
        load_one(config(folder, num_classes=5))
    write(folder / "train-0.tfrecord", [number(label) for label in range(4)])
    data = load_one(config(folder, num_classes=5))
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of range: allowed are 0 to 4"):
        batches(data.train, 10)


def test_classes_are_needed(folder: Path) -> None:
    with pytest.raises(UserError, match=r"data.num_classes is missing: .*classification"):
        load_one(config(folder, num_classes=None))


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file fits .*train-\*"):
        load_one(config(tmp_path))
    write(tmp_path / "train-0.tfrecord", [])
    with pytest.raises(UserError, match="no records in"):
        load_one(config(tmp_path))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_every_truncation_is_noticed(tmp_path: Path, compression: str) -> None:
    records = [number(0), number(1)]
    tf_compression = "GZIP" if compression == "gzip" else None
    path = write(tmp_path / "a.tfrecord", records, tf_compression)
    content = path.read_bytes()
    assert count_records([str(path)], compression) == [2]
    border = len(content) // 2  # between the two records
    for kept in range(1, len(content)):
        path.write_bytes(content[:kept])
        if compression == "none" and kept == border:
            assert count_records([str(path)], compression) == [1]
            continue
        with pytest.raises(UserError, match=r"a.tfrecord"):
            count_records([str(path)], compression)
