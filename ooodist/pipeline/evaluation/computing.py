"""What a stage computes of a batch that is evaluated; the last one updates the metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.pipeline.runtime.work import in_structure, loss_of_outputs
from ooodist.pipeline.stages import Stage

LOSS = tf.TensorSpec((), tf.float32)  # the sum that is sent from stage to stage

Specs = tuple[tf.TensorSpec, ...]


@dataclass(frozen=True)
class Samples:
    """A batch, without what no stage of this rank needs.

    Attributes:
        specs: of all inputs of the model.
        inputs: those that are needed, by index in the model.
        y, sample_weight: as in the data; None where they are not needed.
    """

    specs: Specs
    inputs: dict[int, tf.Tensor]
    y: Any = None
    sample_weight: Any = None


class ByShapes:
    """Traces a function for each combination of shapes that it is called with.

    A tf.function would do so, too, but warns where the first few calls differ, as those of a short
    evaluation do.

    Args:
        function: called with structures of tensors, None and numbers.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._traced: dict[tuple[Any, ...], Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        key = tuple(
            (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, tf.Tensor) else leaf
            for leaf in tf.nest.flatten(arguments)
        )
        if key not in self._traced:
            function = tf.function(self._function, autograph=False)
            self._traced[key] = function.get_concrete_function(*arguments)
        return self._traced[key](*arguments)


class Forward:
    """Runs a stage.

    Args:
        stage: the stage.
        reads: which inputs of the model it needs.
        adds_loss: whether the last tensor received is the loss that earlier stages have added, and
            the last one sent is that with what this stage adds.
    """

    def __init__(self, stage: Stage, reads: Sequence[int], *, adds_loss: bool) -> None:
        self._stage = stage
        self._reads = reads
        self._adds_loss = adds_loss
        self._run = ByShapes(self._compute)

    def __call__(self, samples: Samples, received: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        if self._adds_loss and not self._stage.number:
            received = [tf.zeros(LOSS.shape, LOSS.dtype)]
        inputs = [*(samples.inputs[at] for at in self._reads), *received]
        sent: list[tf.Tensor] = self._run(inputs, samples.specs[0].shape[0])
        return sent

    def _compute(self, received: Sequence[tf.Tensor], count: int) -> list[tf.Tensor]:
        if not self._adds_loss:
            return self._stage.run(received, training=False, samples=count)
        *inputs, loss = received
        sent = self._stage.run(inputs, training=False, samples=count)
        return [*sent, with_losses(self._stage, loss)]


class Measured:
    """Runs the last stage, and updates the metrics of the model.

    Args:
        model: the whole model.
        stage: its last stage.
        reads: which inputs of the model it needs.
        names: the metrics that are returned, in their order.
    """

    def __init__(
        self, model: keras.Model, stage: Stage, reads: Sequence[int], names: Sequence[str]
    ) -> None:
        self._model = model
        self._stage = stage
        self._reads = reads
        self._names = names
        self._mean_loss = next(metric for metric in model.metrics if metric.name == "loss")
        self._run = ByShapes(self._compute)

    def __call__(self, samples: Samples, received: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        received = received or [tf.zeros(LOSS.shape, LOSS.dtype)]
        inputs = [*(samples.inputs[at] for at in self._reads), *received]
        count = samples.specs[0].shape[0]
        return [self._run(inputs, samples.y, samples.sample_weight, count)]

    def _compute(
        self, received: Sequence[tf.Tensor], y: Any, sample_weight: Any, count: int
    ) -> tf.Tensor:
        """Does what Keras's ``test_step`` does; returns the metrics in a row."""
        model, stage = self._model, self._stage
        *inputs, loss = received
        sent = stage.run(inputs, training=False, samples=count)
        predicted = in_structure(model, sent[: len(stage.sent)])  # with their masks
        compiled = loss_of_outputs(model, y, predicted, sample_weight, training=False)
        total = with_losses(stage, loss) + tf.cast(compiled, tf.float32)
        self._mean_loss.update_state(total, sample_weight=count)
        model.compute_metrics(x=None, y=y, y_pred=predicted, sample_weight=sample_weight)
        return in_a_row(model.get_metrics_result(), self._names)


def with_losses(stage: Stage, loss: tf.Tensor) -> tf.Tensor:
    """A loss plus what the layers of a stage have added to it when it ran."""
    return tf.add_n(
        [loss, *(tf.reduce_sum(tf.cast(added, tf.float32)) for added in stage.model.losses)]
    )


def shapes_of_metrics(model: keras.Model) -> dict[str, tf.TensorShape]:
    """The shape of each metric's result, by name, in the order of the names.

    Args:
        model: its metrics are built, and ``get_metrics_result`` works while a graph is traced.
    """

    def result() -> dict[str, tf.Tensor]:
        return {name: tf.convert_to_tensor(v) for name, v in model.get_metrics_result().items()}

    traced = tf.function(result, autograph=False).get_concrete_function().structured_outputs
    return {name: traced[name].shape for name in sorted(traced)}


def in_a_row(results: dict[str, tf.Tensor], names: Sequence[str]) -> tf.Tensor:
    """These metrics as one float64 tensor of shape (numbers,)."""
    return tf.concat([tf.reshape(tf.cast(results[n], tf.float64), [-1]) for n in names], 0)


def by_name(row: tf.Tensor, shapes: dict[str, tf.TensorShape]) -> dict[str, np.ndarray]:
    """The metrics that :func:`in_a_row` has put in a row."""
    ends = np.cumsum([shape.num_elements() for shape in shapes.values()])
    parts = np.split(row.numpy(), ends[:-1])
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
