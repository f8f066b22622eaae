"""A user's function that returns tf.data datasets."""

from __future__ import annotations

import logging
import time
from typing import Any

import keras
import tensorflow as tf

from ooodist.config.data import FunctionConfig
from ooodist.data.elements import assert_labels, find_task
from ooodist.data.kinds.py_dataset import as_samples
from ooodist.data.sources import Meaning, Pair, SequentialSource
from ooodist.errors import UserError
from ooodist.util.user_functions import call_users

log = logging.getLogger("ooodist")


def source(config: FunctionConfig) -> SequentialSource:
    """Makes a source of the datasets as they are: dtypes and values are up to the function."""
    name = config.function
    train, validation = _datasets(config)
    x_spec, y_spec = _check_elements(name, train)
    if validation is not None and _check_elements(name, validation) != (x_spec, y_spec):
        raise UserError(
            f"data.function {name}: training has elements {train.element_spec}, validation "
            f"{validation.element_spec}: they must be alike"
        )
    task = find_task(name, config.task, config.num_classes, x_spec, y_spec)
    num_samples, num_classes = _count(name, train), config.num_classes
    if task != "regression" and num_classes is None:
        if num_samples is None:
            raise UserError(
                f"data.num_classes is missing: the data set of {name} is endless, so its classes "
                "cannot be counted; give their number"
            )
        num_classes = _largest_label(name, train) + 1

    def check(x: Any, y: tf.Tensor) -> Pair:
        return x, y if num_classes is None else assert_labels(y, num_classes, name)

    classes = "" if num_classes is None else f", {num_classes} classes"
    return SequentialSource(
        Meaning(config.name, f"{name}, x {x_spec}{classes}", task, num_classes),
        train,
        num_samples,
        validation,
        None if validation is None else _count_validation(name, validation),
        config.shuffle_buffer,
        check,
    )


def _datasets(config: FunctionConfig) -> tuple[tf.data.Dataset, tf.data.Dataset | None]:
    name = config.function
    returns = "a tf.data.Dataset or a PyDataset, or a pair of them (training, validation)"
    result = call_users(name, config.arguments, "data.function", returns)
    given = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    train, validation = (
        as_samples(each, name) if isinstance(each, keras.utils.PyDataset) else each
        for each in given
    )
    if not isinstance(train, tf.data.Dataset) or not isinstance(validation, tf.data.Dataset | None):
        raise UserError(
            f"data.function {name} returned {type(result).__name__} {str(result)[:80]}: it must "
            f"return {returns}"
        )
    return train, validation


def _check_elements(name: str, dataset: tf.data.Dataset) -> tuple[Any, Any]:
    """The specs of x and y. Raises UserError if a dataset does not have such pairs."""
    spec = dataset.element_spec
    leaves = tf.nest.flatten(spec)
    is_pair = isinstance(spec, tuple) and len(spec) == 2
    if not is_pair or not all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined() for leaf in leaves
    ):
        raise UserError(
            f"data.function {name}: the dataset has elements {spec}; they must be pairs (x, y) of "
            "dense tensors with known shapes, not batched: ooodist makes the batches"
        )
    return spec[0], spec[1]


def _count(name: str, dataset: tf.data.Dataset) -> int | None:
    """The number of samples; None for an endless data set."""
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY:
        return None
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        start = time.perf_counter()
        cardinality = int(dataset.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1))
        log.info(
            "counted %d samples of %s in %.1f s (assert_cardinality() in the function saves this)",
            cardinality,
            name,
            time.perf_counter() - start,
        )
    if cardinality == 0:
        raise UserError(f"data.function {name}: the dataset is empty")
    return cardinality


def _count_validation(name: str, dataset: tf.data.Dataset) -> int:
    number = _count(name, dataset)
    if number is None:
        raise UserError(
            f"data.function {name}: the validation dataset is endless; return it without repeat()"
        )
    return number


def _largest_label(name: str, dataset: tf.data.Dataset) -> int:
    start = time.perf_counter()
    labels = dataset.map(lambda x, y: tf.cast(tf.reduce_max(y), tf.int64))
    largest = int(labels.reduce(tf.constant(1, tf.int64), tf.maximum))
    log.info(
        "found %d classes in %s in %.1f s (data.num_classes saves this)",
        largest + 1,
        name,
        time.perf_counter() - start,
    )
    return largest
