"""What training_worker.py trains, and on which data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.planner.pipeline.costs import BUCKET_BYTES
from tests.pipeline.models import MODELS

EPOCHS, STEPS = 2, 5


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    model: str
    pipeline: int
    microbatches: int
    data: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.05, momentum=0.9)
    loss_weight: float = 1.0
    # Sums of floats in another order, in each step: seen up to 1e-6, and an error that matters is
    # beyond 1e-3.
    tolerance: float = 5e-6 * EPOCHS * STEPS
    direct: bool = False  # MPI gets tensors where they are, as on a GPU
    class_weight: dict[int, float] | None = None
    bucket_bytes: int = BUCKET_BYTES
    again: Callable[[], Any] | None = None  # an optimizer: compiled anew, and trained on arrays
    evaluates: bool = False  # as one process does, too, which no schedule and no optimizer changes


CASES = {
    "one_rank": Case("unet", 1, 4, evaluates=True),
    "batch_norm": Case("convolution_with_batch_norm", 2, 2, options={"schedule": "interleaved"}),
    "recompute": Case("encoder_decoder", 2, 4, options={"schedule": "zb_h1", "recompute": True}),
    "tied": Case(
        "tied_and_shared_weights",
        2,
        4,
        options={"schedule": "1f1b", "chunks": 1},
        optimizer=lambda: keras.optimizers.Adam(1e-3),
    ),
    "twins": Case(
        "twins",
        2,
        4,
        options={"schedule": "1f1b", "split": ("encoder:2",)},
        optimizer=lambda: keras.optimizers.Adam(1e-3),
    ),
    "twins_on_one_rank": Case(  # without stages: data parallel training
        "twins",
        1,
        2,
        data=2,
        options={"shard_optimizer": True},
        optimizer=lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5),
            initial_scale=2.0**15,
            dynamic_growth_steps=4,
        ),
        evaluates=True,
    ),
    "sharded_twins": Case(
        "twins",
        2,
        2,
        data=2,
        options={"schedule": "zb_h1", "split": ("decoder",), "shard_optimizer": True},
        optimizer=lambda: keras.optimizers.Adam(1e-3, global_clipnorm=0.05, weight_decay=1e-3),
    ),
    "clipped": Case(
        "unet",
        2,
        4,
        options={"schedule": "zb_h1"},
        optimizer=lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.05, weight_decay=1e-3),
        direct=True,
        evaluates=True,
    ),
    "scaled": Case(
        "unet",
        2,
        4,
        options={"schedule": "gpipe"},
        optimizer=lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5),
            initial_scale=2.0**127,
            dynamic_growth_steps=4,
        ),
        loss_weight=1e4,  # so large that the first steps are skipped
    ),
    # The scale is halved until all is finite with it that one process computes.
    "scaled_replicas": Case(
        "unet",
        1,
        2,
        data=2,
        optimizer=lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9),
            initial_scale=2.0**127,
            dynamic_growth_steps=4,
        ),
        loss_weight=100.0,  # skipped are the first steps, and one after the scale has grown
    ),
    "auto": Case("regularized", 2, 4),
    "outputs": Case(
        "several_inputs_and_outputs",
        2,
        2,
        options={"schedule": "zb_h2"},
        again=lambda: keras.optimizers.RMSprop(1e-2, epsilon=1e-3),
        evaluates=True,
    ),
    "by_name": Case(
        "inputs_by_name",
        2,
        2,
        options={"schedule": "1f1b"},
        class_weight={1: 3, 4: 2},
        again=lambda: keras.optimizers.SGD(0.1),
        evaluates=True,
    ),
    "four_stages": Case(
        "encoder_decoder", 4, 2, options={"schedule": "push", "chunks": 1}, evaluates=True
    ),
    "buckets": Case("unet", 2, 4, data=2, options={"schedule": "zb_v"}, bucket_bytes=200),
    "replicas_of_tied": Case(
        "tied_and_shared_weights",
        2,
        4,
        data=2,
        options={"schedule": "zb_h2", "chunks": 1},
        evaluates=True,
    ),
    "sharded_and_tied": Case(
        "tied_and_shared_weights",
        2,
        2,
        data=2,
        options={"schedule": "1f1b", "chunks": 1, "shard_optimizer": True},
        optimizer=lambda: keras.optimizers.Adam(
            1e-3, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
        ),
    ),
    "masked": Case(
        "masked_to_the_end",
        2,
        4,
        options={"split": ("add_1",), "schedule": "zb_h1"},
        evaluates=True,
    ),
    "mixed_precision": Case(
        "mixed_bfloat16", 2, 4, options={"schedule": "1f1b"}, tolerance=2e-3, evaluates=True
    ),
    "lost_batch_size": Case(
        "lost_batch_size",
        2,
        4,
        options={"split": ("behind",), "schedule": "1f1b"},
        evaluates=True,
    ),
    "split": Case(
        "dense_with_dropout", 2, 4, options={"split": ("dense_1",), "schedule": "fast_forward"}
    ),
}


class Batches:
    """Other samples in each batch: those of a model's example, scaled or moved on."""

    def __init__(self, case: Case) -> None:
        keras.utils.clear_session()  # the same names each time
        keras.utils.set_random_seed(5)
        self.model, inputs, labels = MODELS[case.model]()
        self.has_several_outputs = len(self.model.outputs) > 1
        self._structure = inputs
        self._inputs, self._labels = tf.nest.flatten(inputs), tf.nest.flatten(labels)
        self._case = case

    def microbatch(self, number: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        inputs = [
            x * (1 + 0.1 * (number % 7)) if x.dtype.is_floating else (x + number) % 5
            for x in self._inputs
        ]
        return inputs, [(y + number) % 5 for y in self._labels]

    def batch(self, step: int, replica: int) -> Any:
        """As a data set yields it."""
        m = self._case.microbatches
        first = (step * self._case.data + replica) * m
        parts = [self.microbatch(number) for number in range(first, first + m)]
        inputs = [tf.concat(those, 0) for those in zip(*(x for x, _ in parts), strict=True)]
        labels = [tf.concat(those, 0) for those in zip(*(y for _, y in parts), strict=True)]
        return self.shaped(inputs, labels)

    def shaped(self, inputs: list[tf.Tensor], labels: list[tf.Tensor]) -> Any:
        x = keras.tree.lists_to_tuples(tf.nest.pack_sequence_as(self._structure, inputs))
        return x, tuple(labels) if self.has_several_outputs else labels[0]

    def arrays(self) -> list[Any]:
        """The epoch as x and y for fit, with lists instead of tuples."""
        batches = [self.batch(step, 0) for step in range(STEPS)]
        whole = tf.nest.map_structure(lambda *those: np.concatenate(those), *batches)
        return [list(part) if isinstance(part, tuple) else part for part in whole]

    def data(self, replica: int) -> tf.data.Dataset:
        """An epoch."""
        batches = [self.batch(step, replica) for step in range(STEPS)]
        spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, batches[0])
        return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec).apply(
            tf.data.experimental.assert_cardinality(STEPS)
        )
