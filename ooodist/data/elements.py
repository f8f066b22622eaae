"""Checks and converts samples: the dtypes that models take, the task of (x, y), and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ooodist.errors import UserError


def check_dtype(what: str, dtype: tf.DType) -> None:
    """Refuses what is not a number, such as text and complex numbers; ``what`` names it."""
    if not (dtype.is_integer or dtype.is_floating or dtype.is_bool):
        raise UserError(
            f"{what} has dtype {dtype.name}: allowed are integers, floats and bool; "
            "turn it into numbers first"
        )


def check_finite(what: str, array: np.ndarray) -> None:
    """Refuses NaN and values beyond float32: a single one may turn all weights into NaN.

    ``what`` names the array.
    """
    bad = ~(np.abs(array) <= np.finfo(np.float32).max)
    if bad.any():
        first = np.unravel_index(bad.argmax(), bad.shape)
        raise UserError(
            f"{what} has {array[first]} at {[int(place) for place in first]}; {bad.sum():,} of its "
            f"{bad.size:,} values are not finite in float32: leave these samples out, or put "
            "numbers there (numpy.nan_to_num makes zeros of NaN)"
        )


def to_input(x: tf.Tensor, scale: float | None = None) -> tf.Tensor:
    """Converts images (uint8) to float32 in [0, 1], other integers to int32, floats to float32.

    With ``scale``, everything is converted to float32 and multiplied by it.
    """
    if scale is not None:
        return tf.cast(x, tf.float32) * scale
    if x.dtype == tf.uint8:
        return tf.cast(x, tf.float32) / 255.0
    return tf.cast(x, tf.int32 if x.dtype.is_integer else tf.float32)


def to_target(y: tf.Tensor, task: str) -> tf.Tensor:
    """Converts labels and tokens to int32, the targets of a regression to float32."""
    return tf.cast(y, tf.float32 if task == "regression" else tf.int32)


def find_task(kind: str, task: str | None, num_classes: int | None, x: Any, y: Any) -> str:
    """Finds the task: ``task``, or what fits the ``tf.TensorSpec`` (without a batch) of x and y.

    Raises UserError if the dtypes and shapes fit several tasks, or not the given one, or if
    ``num_classes`` is given for a regression.
    """
    task = _infer_task(kind, task, x, y)
    if task == "regression" and num_classes is not None:
        raise UserError(
            f"data.num_classes is {num_classes}, but y of {kind} is {y}: a regression has no "
            "classes; leave it out, or make the labels integers"
        )
    return task


def _infer_task(kind: str, task: str | None, x: Any, y: Any) -> str:
    is_label = isinstance(y, tf.TensorSpec) and (y.dtype.is_integer or y.dtype.is_bool)
    if task in ("classification", "language") and not is_label:
        raise UserError(f"data.task is {task}, but y of {kind} is {y}: it needs integer labels")
    if task is not None:
        return task
    if is_label and (y.shape.rank == 0 or y.shape == (1,)):
        return "classification"
    if is_label and isinstance(x, tf.TensorSpec) and x.dtype.is_integer and x.shape == y.shape:
        return "language"
    if isinstance(y, tf.TensorSpec) and y.dtype.is_floating:
        return "regression"
    raise UserError(
        f"{kind} has x {x} and y {y}, which fit no task for certain: give data.task, one of "
        "classification, language, regression"
    )


def count_classes(kind: str, labels: np.ndarray, num_classes: int | None) -> int:
    """Counts classes: ``num_classes``, or the largest label + 1. UserError: one is out of range."""
    largest, smallest = int(labels.max()), int(labels.min())
    if smallest < 0 or (num_classes is not None and largest >= num_classes):
        allowed = "0 and above" if num_classes is None else f"0 to {num_classes - 1}"
        wrong = smallest if smallest < 0 else largest
        sample = int(np.argwhere(labels == wrong)[0][0])
        raise UserError(
            f"label {wrong} of {kind}'s sample {sample} is out of range: allowed are {allowed}; "
            "correct the labels or data.num_classes"
        )
    return max(largest + 1, 2) if num_classes is None else num_classes


def assert_labels(y: tf.Tensor, num_classes: int, kind: str) -> tf.Tensor:
    """``y``, checked as it is read: some devices silently turn a wrong label into NaN."""
    message = f"a label of {kind} is out of range: allowed are 0 to {num_classes - 1}"
    in_range = tf.reduce_all((y >= 0) & (y < num_classes))
    with tf.control_dependencies([tf.debugging.Assert(in_range, [message, y])]):
        return tf.identity(y)
