"""Computes one stage of a rank: F, I and W of each micro-batch.

Between them it saves what the next one needs, and no longer. Weight gradients are accumulated in
place over the micro-batches of a step, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat import keras_model
from ooodist.compat.keras_deferred import standing_in
from ooodist.errors import UserError
from ooodist.graph.cut import Saved, cut_stage
from ooodist.pipeline.stages import Stage

Loss = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], tf.Tensor]


class StageWork:
    """Trains one stage of a model.

    Args:
        stage: a stage of the model.
        reads: specs of the model inputs that the stage reads, for a micro-batch.
        received: specs of what it receives from the previous stage, masks included.
        targets: specs of what the loss compares with; empty except for the last stage.
        loss: (outputs of the model, targets) -> the mean loss of a micro-batch, without what layers
            add to it; None except for the last stage.
        accumulators: by name of the variable; missing ones are added.
        trained: the variables that are trained, in the order of the model; None for all.
        sends_gradients: whether the previous stage needs gradients.
        forward_only: neither I nor W will be called.
        recompute: run F again in I instead of saving its activations.
        buckets: groups of the trained variables whose gradients are summed together, all of them
            in the order in which :meth:`weight_gradient_part` computes them; empty: there is no W
            in parts.
        samples: of a micro-batch; see :meth:`~ooodist.pipeline.stages.Stage.run`.

    Attributes:
        cut: what is computed in F, I and W, and the bytes that they save and need.
        loss_scale: factor on the loss, and so on all gradients.
        on_outputs: called with each micro-batch's outputs, followed by their masks, and targets;
            for the last stage.
        on_last_gradient: called with variables after their last gradients of a step.
    """

    def __init__(
        self,
        stage: Stage,
        reads: Sequence[tf.TensorSpec],
        received: Sequence[tf.TensorSpec],
        targets: Sequence[tf.TensorSpec],
        loss: Loss | None,
        accumulators: dict[str, tf.Variable],
        *,
        trained: Sequence[keras.Variable] | None = None,
        sends_gradients: bool = True,
        forward_only: bool = False,
        recompute: bool = False,
        buckets: Sequence[Sequence[keras.Variable]] = (),
        samples: int | None = None,
    ) -> None:
        self.stage = stage
        self._samples = samples
        self.loss_scale = 1.0
        self.on_outputs: Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], None] | None = None
        self.on_last_gradient: Callable[[Sequence[keras.Variable]], None] | None = None
        self._loss = loss
        self._received = tuple(received)
        self._num_inputs = len(reads) + len(received)
        self.variables = stage.model.trainable_variables if trained is None else list(trained)
        self._sends_gradients = sends_gradients
        self._is_forward_only = forward_only
        names = [stage.name_of(variable) for variable in self.variables]
        for name, variable in zip(names, self.variables, strict=True):
            if name not in accumulators:
                zeros = tf.zeros(variable.shape, variable.dtype)
                accumulators[name] = tf.Variable(zeros, trainable=False)
        number_of = {id(variable): number for number, variable in enumerate(self.variables)}
        self.cut = cut_stage(
            self._compute,
            [*reads, *received, *targets],
            [variable.value for variable in self.variables],
            [accumulators[name] for name in names],
            input_gradients=sends_gradients,
            recompute=recompute,
            buckets=[[number_of[id(variable)] for variable in bucket] for bucket in buckets],
        )
        self._buckets = buckets
        self._microbatches = 0
        self._data: dict[int, Sequence[tf.Tensor]] = {}
        self._targets: dict[int, Sequence[tf.Tensor]] = {}
        self._losses: list[tf.Tensor] = []
        self._saved: dict[int, Saved] = {}
        self._for_weights: dict[int, list[tf.Tensor]] = {}
        self._seeds: dict[int, list[tf.Tensor]] = {}
        self._gradients_left = 0
        self._parts_done: list[int] = []  # micro-batches, by bucket
        self._for_parts: dict[int, list[tf.Tensor]] = {}  # what the next part takes

    @property
    def parts(self) -> int:
        """The number of parts in which W can be computed; 0: only as a whole."""
        return len(self._buckets)

    @property
    def mean_loss(self) -> float:
        """The stage's contribution to the mean loss of the step."""
        return sum(float(loss) for loss in self._losses) / self._microbatches

    def begin(
        self,
        data: Sequence[Sequence[tf.Tensor]],
        targets: Sequence[Sequence[tf.Tensor]] = (),
    ) -> None:
        """Begins a step, whose loss is the mean of those of its micro-batches.

        Args:
            data: for each micro-batch, the model inputs that the stage reads.
            targets: for each, what the loss compares with.
        """
        self._data, self._targets = dict(enumerate(data)), dict(enumerate(targets))
        self._microbatches = len(data)
        self._losses.clear()
        self._gradients_left = self._microbatches
        self._parts_done = [0] * self.parts

    def forward(self, microbatch: int, received: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What the stage sends; for the last one, the outputs of the model."""
        # Used only here: what I and W need of it is saved.
        targets = self._targets.pop(microbatch) if self._loss is not None else ()
        inputs = [*self._data.pop(microbatch), *received, *targets]
        outputs, saved = self.cut.forward(inputs)
        *sent, loss = outputs
        self._losses.append(loss)
        if self._is_forward_only:
            return sent
        self._saved[microbatch] = saved
        self._seeds[microbatch] = [tf.constant(self.loss_scale / self._microbatches, loss.dtype)]
        if self._loss is not None:  # the outputs only feed metrics: no gradient comes for them
            zeros = [tf.zeros_like(output) for output in sent if output.dtype.is_floating]
            self._seeds[microbatch] = [*zeros, *self._seeds[microbatch]]
            if self.on_outputs is not None:
                self.on_outputs(sent, targets)
        return sent

    def input_gradient(self, microbatch: int, received: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of those received tensors that have a floating-point dtype.

        Args:
            microbatch: its number in the step.
            received: the gradients of what the stage has sent.
        """
        saved = self._saved.pop(microbatch)
        seeds = [*received, *self._seeds.pop(microbatch)]
        gradients, made = self.cut.input_gradient(seeds, saved.for_input)
        self._saved[microbatch] = Saved([], saved.for_weights)
        self._for_weights[microbatch] = made
        if not self._sends_gradients:
            return []
        return [
            tf.zeros(spec.shape, spec.dtype) if gradient is None else gradient
            for spec, gradient in zip(
                self._received, gradients[len(self.stage.reads) : self._num_inputs], strict=True
            )
            if spec.dtype.is_floating
        ]

    def weight_gradient(self, microbatch: int) -> None:
        """Adds the gradients of the weights to the accumulators."""
        saved = self._saved.pop(microbatch)
        self.cut.weight_gradient(saved.for_weights, self._for_weights.pop(microbatch))
        self._gradients_left -= 1
        if not self._gradients_left and self.on_last_gradient is not None:
            self.on_last_gradient(self.variables)

    def weight_gradient_part(self, microbatch: int, part: int) -> None:
        """Adds the gradients of a bucket's weights to the accumulators.

        A micro-batch has either all parts, in order, or :meth:`weight_gradient`; and if some have
        parts, then all after them.
        """
        if part == 0:
            saved = self._saved.pop(microbatch)
            self._for_parts[microbatch] = [
                *saved.for_weights,
                *self._for_weights.pop(microbatch),
            ]
        taken = self._for_parts.pop(microbatch)
        self._for_parts[microbatch] = self.cut.weight_gradient_parts[part](*taken)
        if part == self.parts - 1:
            del self._for_parts[microbatch]
        self._parts_done[part] += 1
        if self._parts_done[part] == self._gradients_left and self.on_last_gradient is not None:
            self.on_last_gradient(self._buckets[part])

    def _compute(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """What the stage sends, then what it adds to the loss; traced and cut."""
        inputs, targets = tensors[: self._num_inputs], tensors[self._num_inputs :]
        num_reads = len(self.stage.reads)
        read = [tf.stop_gradient(tensor) for tensor in inputs[:num_reads]]
        received = [*read, *inputs[num_reads:]]
        sent = self.stage.run(received, training=True, samples=self._samples)
        added = [tf.cast(loss, tf.float32) for loss in self.stage.model.losses]
        if self._loss is None:
            return [*sent, tf.add_n(added) if added else tf.zeros([])]
        outputs = sent[: len(self.stage.sent)]  # with their masks, as Keras wants them
        loss = tf.cast(self._loss(outputs, targets), tf.float32)
        return [*map(tf.stop_gradient, sent), tf.add_n([loss, *added])]


def in_structure(model: keras.Model, outputs: Sequence[tf.Tensor]) -> Any:
    """A model's outputs in its own structure: a single one, or a list or dictionary."""
    if isinstance(model, keras.Sequential):
        return outputs[0]
    return tf.nest.pack_sequence_as(model.output, list(outputs))


def compiled_loss(model: keras.Model, targets: Any) -> Loss:
    """The loss that a model was compiled with, without what its layers add to it.

    Args:
        model: the whole model, whose layers were called, so that they know what they add.
        targets: (y,) or (y, sample_weight) as in the data; only their structure is used.

    Raises:
        UserError: there is no loss at all.
    """
    if keras_model.compiled_loss(model) is None and not _adds_to_loss(model):
        raise UserError(
            f"model {model.name} was compiled without a loss, and its layers add none; give one, "
            "as compile(loss=…)"
        )

    def loss(outputs: Sequence[tf.Tensor], flat_targets: Sequence[tf.Tensor]) -> tf.Tensor:
        y, *weights = tf.nest.pack_sequence_as(targets, flat_targets)
        sample_weight = weights[0] if weights else None
        return loss_of_outputs(model, y, in_structure(model, outputs), sample_weight, training=True)

    return loss


def loss_of_outputs(
    model: keras.Model, y: Any, predicted: Any, sample_weight: Any, *, training: bool
) -> tf.Tensor:
    """The loss of a batch, without what layers add to it; called while a graph is traced.

    ``compute_loss`` adds what all layers add, and so reads weights that this rank may not have. It
    is only called if the user has overridden it.

    Args:
        model: the whole model.
        y, sample_weight: as in the data; None if the data has none.
        predicted: the outputs in the structure of the model, with their masks.
        training: whether the model trains.
    """
    if type(model).compute_loss is keras.Model.compute_loss:
        loss = keras_model.compiled_loss(model)
        value = None if loss is None else loss(y, predicted, sample_weight)
        return tf.zeros([]) if value is None else value
    value = model.compute_loss(
        y=y, y_pred=predicted, sample_weight=sample_weight, training=training
    )
    added = [tf.cast(each, value.dtype) for each in model.losses]
    return value - tf.add_n(added) if added else value


def check_losses(stages: Sequence[Stage]) -> None:
    """Raises UserError if several stages would add a layer's loss (a layer with calls in both)."""
    seen: dict[int, int] = {}
    for stage in stages:
        for layer in stage.model.layers:
            first = seen.setdefault(id(layer), stage.number)
            if first != stage.number and _adds_to_loss(layer):
                raise UserError(
                    f"layer {layer.name} adds to the loss (a regularizer?) and is called in stages "
                    f"{first} and {stage.number}: split the model so that all its calls are in one "
                    "stage, or take the regularizer away"
                )


def _adds_to_loss(layer: keras.Layer) -> bool:
    """Whether a layer or model adds to the loss."""
    found: list[Any] = []

    def look() -> None:
        found.extend(layer.losses)

    # Regularizers read weights, which this rank may not have: in a graph that never runs.
    with standing_in(layer.variables, with_memory=False):
        tf.function(look, autograph=False).get_concrete_function()
    return bool(found)
