"""What a rank computes for one of its stages: F, B and W of each micro-batch.

Between them it keeps what the next one needs, and not longer. Weight gradients are added up over
the micro-batches of a step in place, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ooodist.backprop.cut import Kept, cut_stage
from ooodist.errors import UserError
from ooodist.pipeline.stages import Stage

Loss = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], tf.Tensor]


class StageWork:
    """One stage of a model that trains.

    Args:
        stage: of the model.
        inputs: of a micro-batch, what the stage reads and receives.
        targets: of a micro-batch, what the loss compares with; empty but for the last stage.
        loss: (outputs of the model, targets) -> the mean loss of a micro-batch, without what layers
            add to it; None but for the last stage.
        accumulators: by variable path; those of further stages of the rank are added.
        microbatches: of a step; the loss of a step is their mean.
        recompute: run F again in B instead of keeping what it makes.

    Raises:
        UserError: a layer that adds to the loss is also called in an earlier stage.
    """

    def __init__(
        self,
        stage: Stage,
        inputs: Sequence[tf.TensorSpec],
        targets: Sequence[tf.TensorSpec],
        loss: Loss | None,
        accumulators: dict[str, tf.Variable],
        microbatches: int,
        *,
        recompute: bool = False,
    ) -> None:
        self.stage = stage
        self._loss = loss
        self._num_inputs = len(inputs)
        variables = stage.model.trainable_variables
        for variable in variables:
            if variable.path not in accumulators:
                zeros = tf.zeros(variable.shape, variable.dtype)
                accumulators[variable.path] = tf.Variable(zeros, trainable=False)
        self._cut = cut_stage(
            self._compute,
            [*inputs, *targets],
            [variable.value for variable in variables],
            [accumulators[variable.path] for variable in variables],
            recompute=recompute,
        )
        self._share = 1.0 / microbatches
        self._kept: dict[int, Kept] = {}
        self._for_weights: dict[int, list[tf.Tensor]] = {}
        self._seeds: dict[int, list[tf.Tensor]] = {}

    @property
    def kept_bytes(self) -> tuple[int, int, int]:
        """Of a micro-batch: from F to B, from F to W, and from B to W."""
        return self._cut.input_bytes, self._cut.weight_bytes, self._cut.gradient_bytes

    def forward(
        self, microbatch: int, inputs: Sequence[tf.Tensor], targets: Sequence[tf.Tensor] = ()
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """What the stage sends (the last one: the model's outputs), and what it adds to the loss.

        Args:
            microbatch: its number in the step.
            inputs: what the stage reads and receives.
            targets: what the loss compares with.
        """
        outputs, self._kept[microbatch] = self._cut.forward([*inputs, *targets])
        *sent, loss = outputs
        self._seeds[microbatch] = [tf.constant(self._share, loss.dtype)]
        if self._loss is not None:  # the outputs are for the metrics: no gradient comes for them
            zeros = [tf.zeros_like(output) for output in sent if output.dtype.is_floating]
            self._seeds[microbatch] = [*zeros, *self._seeds[microbatch]]
        return sent, loss

    def input_gradient(
        self, microbatch: int, output_gradients: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor | None]:
        """One for each tensor that the stage receives; None where it has none.

        Args:
            microbatch: its number in the step.
            output_gradients: one for each tensor of floating point that it has sent.
        """
        kept = self._kept.pop(microbatch)
        seeds = [*output_gradients, *self._seeds.pop(microbatch)]
        gradients, made = self._cut.input_gradient(seeds, kept.for_input)
        self._kept[microbatch] = Kept([], kept.for_weights)
        self._for_weights[microbatch] = made
        return gradients[len(self.stage.reads) : self._num_inputs]

    def weight_gradient(self, microbatch: int) -> None:
        """Adds the gradients of the weights to the accumulators."""
        kept = self._kept.pop(microbatch)
        self._cut.weight_gradient(kept.for_weights, self._for_weights.pop(microbatch))

    def _compute(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """The stage, as it is cut: what it sends, and at the end what it adds to the loss."""
        inputs, targets = tensors[: self._num_inputs], tensors[self._num_inputs :]
        num_reads = len(self.stage.reads)
        read = [tf.stop_gradient(tensor) for tensor in inputs[:num_reads]]
        sent = self.stage.run([*read, *inputs[num_reads:]], training=True)
        added = [tf.cast(loss, tf.float32) for loss in self.stage.model.losses]
        if self._loss is None:
            return [*sent, tf.add_n(added) if added else tf.zeros([])]
        loss = tf.cast(self._loss(sent, targets), tf.float32)
        return [*map(tf.stop_gradient, sent), tf.add_n([loss, *added])]


def compiled_loss(model: keras.Model, targets: Any) -> Loss:
    """The loss that a model was compiled with, without what its layers add to it.

    Args:
        model: the whole one.
        targets: (y,) or (y, sample_weight) as the data has them; their structure counts.
    """

    def loss(outputs: Sequence[tf.Tensor], flat_targets: Sequence[tf.Tensor]) -> tf.Tensor:
        y, *weights = tf.nest.pack_sequence_as(targets, flat_targets)
        predicted = outputs[0] if len(outputs) == 1 else list(outputs)
        value = model.compute_loss(
            y=y, y_pred=predicted, sample_weight=weights[0] if weights else None, training=True
        )
        # It has added what all layers add; each stage adds its own.
        added = [tf.cast(each, value.dtype) for each in model.losses]
        return value - tf.add_n(added) if added else value

    return loss


def check_losses(stages: Sequence[Stage]) -> None:
    """Raises UserError if what a layer adds to the loss would be added by several stages."""
    seen: dict[int, int] = {}
    for stage in stages:
        for layer in stage.model.layers:
            first = seen.setdefault(id(layer), stage.number)
            if first != stage.number and layer.losses:
                raise UserError(
                    f"layer {layer.name} adds to the loss (a regularizer?) and is called in stages "
                    f"{first} and {stage.number}: split the model so that all its calls are in one "
                    "stage, or take the regularizer away"
                )
