"""The result of :func:`ooodist.data.load`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class Data:
    """One worker's part of the data.

    ``train`` is endless: this worker's batches (x, y) of the global sample stream (see
    ``stream.py``), with static shapes. ``validation`` is finite: this worker's part, in a fixed
    order, every sample on exactly one worker; the last batch may be smaller and workers may have
    different numbers of batches.
    """

    train: tf.data.Dataset
    validation: tf.data.Dataset | None
    steps_per_epoch: int | None  # num_samples // (batch * number of workers); None: no end
    num_samples: int | None  # training samples of all workers together; None: no end
    num_validation_samples: int  # of all workers together; 0 where validation is None
    description: str  # one line for people
    task: str  # "classification", "language", "regression" or "pretraining"
    num_classes: int | None  # None: regression
    input_spec: Any  # structure of tf.TensorSpec of x, without the batch
    num_tokens: int | None = None  # of x, if they are known and not the classes
