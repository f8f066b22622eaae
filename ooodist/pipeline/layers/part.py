"""Makes a range of a model's calls a model that trains alone, to measure what they cost.

::

    model     a   b   c | d   e | f   g
    part 1        x -> scale -> d -> e -> squares   x: zeros, of the shape of what c makes

A training step computes no gradient for what a model reads. The scale, which has weights, makes it
compute the dX of ``d``, as the whole model does if something before ``d`` trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat import keras_model
from ooodist.compat.keras_optimizer import unbuilt_copy
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.runtime.work import in_structure
from ooodist.pipeline.stages import Call, Stage, Symbol, calls_of


@dataclass(frozen=True)
class Part:
    """A range of a model's calls as a model of its own.

    Attributes:
        model: compiled; it shares layers and weights with the whole model.
        batch: what it trains on.
        calls: all its calls, in the order in which it makes them.
        numbers: for each of them, its number in the stage that it was made of; None for a scale.
    """

    model: keras.Model
    batch: Any
    calls: tuple[Call, ...]
    numbers: tuple[int | None, ...]


def part_of(
    stage: Stage,
    received: Sequence[tf.TensorSpec],
    splitter: BatchSplitter,
    *,
    trains_before: bool,
    is_last: bool,
) -> Part:
    """A stage as a model that can be trained alone.

    Args:
        stage: a stage of the whole model.
        received: specs of what it receives for a micro-batch: tensors, then their masks.
        splitter: knows the whole model, which is built, and the data.
        trains_before: whether an earlier stage trains, and so needs gradients of this one.
        is_last: whether it computes the model's loss; otherwise the loss is the mean of the
            squares of what it makes, whose gradient is no constant that TensorFlow could fold.
    """
    whole = splitter.model
    data = dict(zip(map(id, whole.inputs), tf.nest.flatten(splitter.first()[0]), strict=True))
    specs = dict(zip(map(id, stage.received), received, strict=False))
    masks = dict(zip(stage.received_masks, received[len(stage.received) :], strict=True))
    mask_of = {id(stage.received[at]): spec for at, spec in masks.items()}
    made = {id(symbol) for symbol in stage.made}
    outputs = [s for s in stage.sent if is_last or id(s) in made]
    needed = {id(s): s for s in (*stage.needed, *(s for s in outputs if id(s) not in made))}
    inputs, values = [], {}
    for key, symbol in needed.items():
        values[key] = keras.Input(batch_shape=symbol.shape, dtype=symbol.dtype)
        inputs.append(values[key])
        if key in specs and (key in mask_of or _is_float(symbol)):
            trainable = trains_before and _is_float(symbol)
            values[key] = ScaleOfPart(mask_of.get(key), trainable=trainable)(values[key])
    numbers: dict[int, int] = {}
    for number, call in enumerate(stage.calls):
        arguments, options = call.arguments.fill_in(values)
        results = tf.nest.flatten(call.layer(*arguments, **options))
        values |= {id(s): result for s, result in zip(call.outputs, results, strict=True)}
        numbers |= {id(result): number for result in results}
    found = [values[id(symbol)] for symbol in outputs]
    model = _TrainedAlone(inputs, found, name=f"{whole.name}_part_{stage.number}")
    if not (model.trainable_variables and any(map(_is_float, found))):  # nothing to train: F alone
        found = [ScaleOfPart(trainable=True)(keras.ops.cast(each, "float32")) for each in found]
        model = _TrainedAlone(inputs, found, name=model.name)
    model.loss_of = _loss_of(whole) if is_last else _squares
    model.compile(optimizer=unbuilt_copy(whole.optimizer), auto_scale_loss=False)
    calls = calls_of(model)
    tensors = [data[key] if key in data else _stand_in(specs[key]) for key in needed]
    _, *targets = splitter.first()
    return Part(
        model,
        (tensors, *(targets if is_last else ())),
        tuple(calls),
        tuple(numbers.get(id(call.outputs[0])) for call in calls),
    )


class _TrainedAlone(keras.Model):
    """A functional model with any loss.

    Attributes:
        loss_of: (outputs, y, sample weights) -> the loss, without what layers add to it.
    """

    loss_of: Callable[[list[tf.Tensor], Any, Any], tf.Tensor]

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        loss = self.loss_of(tf.nest.flatten(y_pred), y, sample_weight)
        return tf.add_n([tf.cast(each, tf.float32) for each in (loss, *self.losses)])


class ScaleOfPart(keras.layers.Layer):
    """Scales floats by two weights; other numbers stay.

    What is computed for one weight alone would count as dW; a gradient for two is dX.

    Args:
        mask: spec of the mask that its result has; None for none.
        trainable: whether gradients are computed for it.
    """

    def __init__(self, mask: tf.TensorSpec | None = None, *, trainable: bool) -> None:
        super().__init__(trainable=trainable, autocast=False)
        self._mask = mask

    def build(self, shape: Any) -> None:
        self.scales = [self.add_weight(shape=(), initializer="ones") for _ in range(2)]

    def call(self, tensor: tf.Tensor) -> tf.Tensor:
        if not _is_float(tensor):
            return tensor
        for scale in self.scales:
            tensor *= keras.ops.cast(scale, tensor.dtype)
        return tensor

    def compute_mask(self, tensor: tf.Tensor, previous: Any = None) -> Any:
        return None if self._mask is None else tf.ones(self._mask.shape, self._mask.dtype)


def _loss_of(whole: keras.Model) -> Callable[[list[tf.Tensor], Any, Any], tf.Tensor]:
    compiled = keras_model.compiled_loss(whole)
    if compiled is None:  # all of the loss is what layers add
        return _squares
    return lambda outputs, y, weights: compiled(y, in_structure(whole, outputs), weights)


def _squares(outputs: list[tf.Tensor], _y: Any, _weights: Any) -> tf.Tensor:
    floats = [tensor for tensor in outputs if _is_float(tensor)]
    return tf.add_n([tf.reduce_mean(tf.square(tf.cast(tensor, tf.float32))) for tensor in floats])


def _is_float(tensor: tf.Tensor | Symbol) -> bool:
    return bool(keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)))


def _stand_in(spec: tf.TensorSpec) -> tf.Tensor:
    """Zeros take as long to compute with as other numbers; a mask of ones hides nothing."""
    return (
        tf.ones(spec.shape, spec.dtype) if spec.dtype.is_bool else tf.zeros(spec.shape, spec.dtype)
    )
