"""Arrays from the user's NumPy .npz files."""

from __future__ import annotations

import logging
import time
import zipfile
import zlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ooodist.config.data import DEFAULT_VALIDATION_FRACTION, NpzConfig
from ooodist.data.elements import (
    check_dtype,
    check_finite,
    count_classes,
    find_task,
    to_input,
    to_target,
)
from ooodist.data.sources import IndexedSource, Meaning, Pair
from ooodist.data.split import split_indices
from ooodist.errors import UserError

log = logging.getLogger("ooodist")

# NotImplementedError: of zipfile, for what is compressed in a way that it does not know.
_DAMAGED = (
    *(OSError, EOFError, ValueError),
    *(NotImplementedError, zipfile.BadZipFile, zlib.error),
)


def source(config: NpzConfig) -> IndexedSource:
    """Makes a source of arrays that are held in memory, in the dtype of the file."""
    x, y = _load(config.path, config)
    x_spec, y_spec = (tf.TensorSpec(array.shape[1:], array.dtype) for array in (x, y))
    task = find_task(config.path, config.task, config.num_classes, x_spec, y_spec)
    num_classes = None
    if task != "regression":
        num_classes = count_classes(config.path, y, config.num_classes)
    train, validation, read_validation = np.arange(len(x)), None, None
    if config.validation is not None:
        validation_x, validation_y = _load(config.validation, config)
        _check_alike(config, x, validation_x)
        _check_alike(config, y, validation_y)
        if num_classes is not None:
            count_classes(config.validation, validation_y, num_classes)
        validation = np.arange(len(validation_x))
        read_validation = _reader(config, validation_x, validation_y, task)
    elif config.validation_fraction != 0:
        fraction = config.validation_fraction or DEFAULT_VALIDATION_FRACTION
        labels = y.reshape(-1) if task == "classification" else None
        train, validation = split_indices(len(x), fraction, config.split_seed, labels)
    classes = "" if num_classes is None else f", {num_classes} classes"
    meaning = Meaning(
        kind=config.name,
        description=f"{config.path}, x {list(x.shape[1:])}, y {list(y.shape[1:])}{classes}",
        task=task,
        num_classes=num_classes,
    )
    read = _reader(config, x, y, task)
    return IndexedSource(meaning, train, validation, read, read_validation=read_validation)


def _reader(
    config: NpzConfig, x: np.ndarray, y: np.ndarray, task: str
) -> Callable[[tf.Tensor], Pair]:
    inputs, targets = tf.constant(x), tf.constant(y)

    def read(indices: tf.Tensor) -> Pair:
        batch_x, batch_y = tf.gather(inputs, indices), tf.gather(targets, indices)
        return to_input(batch_x, config.scale), to_target(batch_y, task)

    return read


def _load(path: str, config: NpzConfig) -> tuple[np.ndarray, np.ndarray]:
    """Loads x and y of one file, and checks each and that they fit together."""
    start = time.perf_counter()
    try:
        arrays = np.load(path, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise UserError(
                f"{path} holds a single array: save x and y together with "
                "numpy.savez(path, x=x, y=y)"
            )
        with arrays:
            x, y = (_array(path, arrays, name) for name in (config.x, config.y))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: data needs a NumPy .npz file") from error
    except _DAMAGED as error:
        raise UserError(
            f"{path} cannot be read as a NumPy .npz file ({error}): it must be whole and hold "
            "arrays of numbers, without Python objects"
        ) from error
    if len(x) != len(y):
        raise UserError(
            f"{path} has {len(x)} samples in {config.x} and {len(y)} in {config.y}: both need "
            "the same number, along the first axis"
        )
    if len(x) == 0:
        raise UserError(f"{path} is empty: its arrays have 0 samples")
    log.info("read %s: %s samples in %.1f s", path, f"{len(x):,}", time.perf_counter() - start)
    return x, y


def _array(path: str, arrays: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    if name not in arrays.files:
        raise UserError(
            f"{path} has no array {name}, it has {', '.join(arrays.files)}: set data.x and data.y"
        )
    array: np.ndarray = arrays[name]
    what = f"array {name} of {path}"
    if array.ndim == 0:
        raise UserError(f"{what} is a single number: samples go along the first axis")
    try:
        dtype = tf.as_dtype(array.dtype)
    except TypeError:
        dtype = tf.string  # dates, records, ...: refused like text
    check_dtype(what, dtype)
    limits = np.iinfo(np.int32)
    if dtype.is_integer and array.size and (array.min() < limits.min or array.max() > limits.max):
        raise UserError(
            f"{what} has integers outside of int32, {array.min()} to {array.max()}: save them as "
            "float32, or as smaller numbers"
        )
    if dtype.is_floating:
        check_finite(what, array)
    return array


def _check_alike(config: NpzConfig, train: np.ndarray, validation: np.ndarray) -> None:
    if train.shape[1:] != validation.shape[1:] or train.dtype != validation.dtype:
        raise UserError(
            f"{config.path} has samples of shape {train.shape[1:]} and dtype {train.dtype}, "
            f"{config.validation} of {validation.shape[1:]} and {validation.dtype}: they must "
            "be alike"
        )
