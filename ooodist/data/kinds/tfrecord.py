"""The user's TFRecord files of ``tf.train.Example``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from ooodist.config.data import FeatureConfig, TFRecordConfig
from ooodist.data.elements import assert_labels, find_task, to_input, to_target
from ooodist.data.kinds.images import decode_image
from ooodist.data.kinds.records import count_records, describe_record, find_records
from ooodist.data.lanes import FILES_AT_ONCE, RecordFile, RecordFiles
from ooodist.data.sources import Meaning, Pair, SequentialSource
from ooodist.errors import UserError


def source(config: TFRecordConfig) -> SequentialSource:
    """Makes a source of files read in a new order each epoch, their records mixed and shuffled."""
    files = find_records(config.pattern)
    counts = count_records(files, config.compression)
    validation_files: list[str] = []
    validation = num_validation = None
    if config.validation_pattern is not None:
        validation_files = find_records(config.validation_pattern)
        num_validation = sum(count_records(validation_files, config.compression))
        validation = _records(config, tf.constant(validation_files))
    parse = _parser(config.features)
    x_spec, y_spec = tf.data.Dataset.from_tensors("").map(parse).element_spec
    task = find_task("tfrecord", config.task, config.num_classes, x_spec, y_spec)
    if task != "regression" and config.num_classes is None:
        raise UserError(f"data.num_classes is missing: tfrecord data needs it for {task}")

    def decode(record: tf.Tensor) -> Pair:
        x, y = parse(record)
        y = to_target(y, task)
        if config.num_classes is not None:
            y = assert_labels(y, config.num_classes, "tfrecord")
        return x, y

    for path in (files[0], *validation_files[:1]):
        _check_first(path, config, decode)

    meaning = Meaning(
        kind=config.name,
        description=f"{config.pattern}, {len(files)} files, x {sorted(_names(config, 'x'))}",
        task=task,
        num_classes=config.num_classes,
    )
    return SequentialSource(
        meaning,
        RecordFiles(tuple(map(RecordFile, files, counts)), _compression(config)),
        sum(counts),
        validation,
        num_validation,
        config.shuffle_buffer,
        decode,
    )


def _names(config: TFRecordConfig, use: str) -> list[str]:
    return [name for name, feature in config.features.items() if feature.use == use]


def _compression(config: TFRecordConfig) -> str:
    return "GZIP" if config.compression == "gzip" else ""


def _records(config: TFRecordConfig, files: tf.Tensor) -> tf.data.Dataset:
    """The records of some files, in a fixed order."""
    return tf.data.Dataset.from_tensor_slices(files).interleave(
        lambda path: tf.data.TFRecordDataset(path, _compression(config)),
        cycle_length=FILES_AT_ONCE,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _parser(features: dict[str, FeatureConfig]) -> Callable[[tf.Tensor], tuple[Any, tf.Tensor]]:
    """Makes a function from one record to x (a dictionary if there are several) and y as stored."""
    stored = {
        name: tf.io.FixedLenFeature(list(feature.shape), feature.dtype)
        if feature.encoding == "none"
        else tf.io.FixedLenFeature([], tf.string)
        for name, feature in features.items()
    }

    def parse(record: tf.Tensor) -> tuple[Any, tf.Tensor]:
        values = tf.io.parse_single_example(record, stored)
        decoded = {name: _decode(values[name], feature) for name, feature in features.items()}
        x = {
            name: to_input(decoded[name])
            for name, feature in features.items()
            if feature.use == "x"
        }
        (y,) = (decoded[name] for name, feature in features.items() if feature.use == "y")
        return (x if len(x) > 1 else next(iter(x.values()))), y

    return parse


def _decode(value: tf.Tensor, feature: FeatureConfig) -> tf.Tensor:
    if feature.encoding == "none":
        return value
    if feature.encoding == "raw":
        return tf.reshape(tf.io.decode_raw(value, feature.dtype), list(feature.shape))
    height, width, channels = feature.shape
    return decode_image(value, (height, width), channels)


def _check_first(path: str, config: TFRecordConfig, decode: Callable[..., Pair]) -> None:
    """Raises UserError if the first record of a file is not what data.features says."""
    record = next(iter(_records(config, tf.constant([path])).take(1)))
    try:
        found = describe_record(record.numpy())
    except DecodeError as error:
        raise UserError(f"the first record of {path} is no tf.train.Example: {error}") from error
    try:
        decode(record)
    except tf.errors.InvalidArgumentError as error:
        reason = error.message.splitlines()[0]
        raise UserError(
            f"the first record of {path} does not fit data.features or data.num_classes "
            f"({reason}): it holds {found}"
        ) from error
