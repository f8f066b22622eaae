"""Splits a batch into micro-batches: what the stages read, and what the loss compares with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ooodist.errors import UserError

Tensors = list[tf.Tensor]


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of one step.

    Attributes:
        inputs: for each micro-batch, the model inputs that were asked for, by index in the model.
        targets: for each, y and the sample weights, flattened; empty if not asked for.
    """

    inputs: list[dict[int, tf.Tensor]]
    targets: list[Tensors]


class BatchSplitter:
    """Splits batches that are like the first one.

    Args:
        model: the model that takes the batches.
        batch: x, y and perhaps sample weights, as the data yields them.
        microbatches: number of micro-batches per batch.

    Attributes:
        model, microbatches: as given.
        size: samples of a batch.
        structure: (y,) or (y, sample_weight) of the latest batch.

    Raises:
        UserError: a batch cannot be split into so many parts, or is not what the model takes.
    """

    def __init__(self, model: keras.Model, batch: Any, microbatches: int) -> None:
        self.model = model
        self.microbatches = microbatches
        self._has_named_inputs = isinstance(input_structure(model), dict)
        self._tensors = self._flatten(batch)
        self._kinds = [_kind(tensor) for tensor in self._tensors]
        self.size = int(self._tensors[0].shape[0])
        if self.size % microbatches:
            raise UserError(
                f"a batch has {self.size} samples, which cannot be split into {microbatches} "
                "micro-batches of one size; make it a multiple of parallel.microbatches"
            )

    def specs(self) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
        """The specs of a micro-batch's inputs and targets."""
        samples = self.size // self.microbatches
        specs = [tf.TensorSpec((samples, *t.shape[1:]), t.dtype) for t in self._tensors]
        number = len(self.model.inputs)
        return specs[:number], specs[number:]

    def first(self) -> Any:
        """The first micro-batch of the first batch, its inputs in the model's structure."""
        samples = self.size // self.microbatches
        number = len(self.model.inputs)
        inputs = [tensor[:samples] for tensor in self._tensors[:number]]
        targets = [tensor[:samples] for tensor in self._tensors[number:]]
        return (
            tf.nest.pack_sequence_as(input_structure(self.model), inputs),
            *tf.nest.pack_sequence_as(self.structure, targets),
        )

    def split(self, batch: Any, places: Collection[int], *, targets: bool) -> MicroBatches:
        """Splits a batch into micro-batches.

        Args:
            batch: as the data yields it.
            places: indices of the model inputs that are needed.
            targets: whether y and the sample weights are needed.

        Raises:
            UserError: the batch is not like the first one.
        """
        tensors = self._flatten(batch)
        kinds = [_kind(tensor) for tensor in tensors]
        if kinds != self._kinds:
            raise UserError(
                f"a batch has {_shown(kinds)}, but the first one had {_shown(self._kinds)}; all "
                "batches of a pipeline must be alike: batch with drop_remainder=True"
            )
        number = len(self.model.inputs)
        inputs = {place: tf.split(tensors[place], self.microbatches) for place in places}
        wanted = [tf.split(tensor, self.microbatches) for tensor in tensors[number:] if targets]
        each = range(self.microbatches)
        return MicroBatches(
            [{place: parts[one] for place, parts in inputs.items()} for one in each],
            [[parts[one] for parts in wanted] for one in each],
        )

    def _flatten(self, batch: Any) -> Tensors:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if weights is not None:  # those from class_weight may be integers
            weights = tf.nest.map_structure(lambda w: tf.cast(w, keras.config.floatx()), weights)
        self.structure = (y,) if weights is None else (y, weights)
        inputs = self.inputs_of(x)
        return [*inputs, *map(tf.convert_to_tensor, tf.nest.flatten(self.structure))]

    def inputs_of(self, x: Any) -> Tensors:
        """The inputs of the model, flattened and with their dtypes; a batch of any size.

        Raises:
            UserError: they are not what the model takes.
        """
        symbols = self.model.inputs
        given = tf.nest.flatten(x)
        names = [symbol.name for symbol in symbols]
        if isinstance(x, dict) and not self._has_named_inputs and {*names} <= {*x}:
            given = [x[name] for name in names]
        if len(given) != len(symbols):
            raise UserError(
                f"the data has {len(given)} inputs, model {self.model.name} takes "
                f"{len(symbols)}: {', '.join(names)}"
            )
        tensors = []
        for symbol, value in zip(symbols, given, strict=True):
            check_dense(value, f"input {symbol.name} of model {self.model.name}")
            tensor = tf.cast(value, symbol.dtype)
            if not tf.TensorShape(symbol.shape).is_compatible_with(tensor.shape):
                raise UserError(
                    f"the data has {tuple(tensor.shape)} for input {symbol.name} of model "
                    f"{self.model.name}, which takes {symbol.shape}"
                )
            tensors.append(tensor)
        return tensors


def whole_microbatches(batch: Any, microbatches: int) -> Any:
    """Takes as many of a batch's samples as can be split into micro-batches, from the first on.

    All of them if they are fewer than micro-batches.
    """
    for tensor in tf.nest.flatten(batch):
        check_dense(tensor, "a batch")
    samples = len(tf.nest.flatten(batch)[0])
    number = samples - samples % microbatches or samples
    return tf.nest.map_structure(lambda tensor: tensor[:number], batch)


def check_dense(value: Any, what: str) -> None:
    """Raises UserError if a value is sparse or ragged."""
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        method = "tf.sparse.to_dense(x)" if isinstance(value, tf.SparseTensor) else "x.to_tensor()"
        raise UserError(
            f"{what} is given a {type(value).__name__}, but batches of a pipeline are split into "
            f"micro-batches, which must be dense; map the data set by {method}, or train with "
            "ooodist.distribute, which takes it as it is"
        )


def input_structure(model: keras.Model) -> Any:
    """A model's inputs in its own structure: a single one, or a list or dictionary."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def _kind(tensor: tf.Tensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype.name, tuple(tensor.shape)


def _shown(kinds: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype} {shape}" for dtype, shape in kinds)
