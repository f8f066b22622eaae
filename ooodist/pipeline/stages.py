"""Splits a Keras model into stages, each a Keras model of its own with the same layers.

A model is a list of calls of layers, in the order in which it runs them; a stage is a part of that
list. What a stage makes and a later one needs goes from stage to stage, also through those that
have no use for it::

    calls     a   b   c | d   e | f   g
    stage         0     |   1   |   2         b is needed by c, d and g:
                     -> b, c -> b, e          0 sends b and c, 1 sends b and e

The inputs of the model are not sent: each stage reads those that it needs from the data. Where
Keras has attached a mask to what is sent (``mask_zero``, a Masking layer), the mask goes along,
behind all else.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from ooodist.compat.keras_graph import function_nodes, mask_of, set_mask
from ooodist.errors import UserError
from ooodist.util.yaml_dataclass import did_you_mean

Symbol: TypeAlias = keras.KerasTensor


class Call(NamedTuple):
    """A layer where it is used; one that is used twice has two calls.

    Attributes:
        name: of the layer; from its second call on with a number behind it, as ``dense:2``.
        layer: or another Keras operation.
        inputs, outputs: symbolic tensors; a mask is one of them.
        arguments: what it is called with, as Keras keeps it.
    """

    name: str
    layer: Any
    inputs: tuple[Symbol, ...]
    outputs: tuple[Symbol, ...]
    arguments: Any


@dataclass(frozen=True)
class Stage:
    """A part of a model.

    Attributes:
        number: from 0.
        calls: those of the whole model that it makes.
        model: of these calls; its layers and weights are those of the whole model.
        reads: inputs of the whole model that it needs.
        received: what it gets from the stage before it.
        sent: what it hands to the stage behind it; of the last one, the outputs of the model.
        received_masks, sent_masks: which of them, by their places, have masks that go along.
    """

    number: int
    calls: tuple[Call, ...]
    model: keras.Model
    reads: tuple[Symbol, ...]
    received: tuple[Symbol, ...]
    sent: tuple[Symbol, ...]
    needed: tuple[Symbol, ...]  # by ``model``
    made: tuple[Symbol, ...]  # by ``model``
    received_masks: tuple[int, ...] = ()
    sent_masks: tuple[int, ...] = ()

    def run(self, inputs: Sequence[tf.Tensor], *, training: bool) -> list[tf.Tensor]:
        """What it sends, and then the masks of it.

        Args:
            inputs: in the order of ``reads`` and then ``received``, and the masks of these.
            training: as for any Keras model.
        """
        symbols, first = (*self.reads, *self.received), len(self.reads)
        tensors = with_masks(inputs, len(symbols), [first + at for at in self.received_masks])
        values = {id(symbol): value for symbol, value in zip(symbols, tensors, strict=True)}
        with warnings.catch_warnings():
            # Keras thinks that a mask is lost in a model; but the layers in it have it.
            warnings.filterwarnings(
                "ignore", f"Layer '{self.model.name}'.*passed an input with a mask"
            )
            made = self.model([values[id(symbol)] for symbol in self.needed], training=training)
        values |= {id(s): value for s, value in zip(self.made, tf.nest.flatten(made), strict=True)}
        sent = [values[id(symbol)] for symbol in self.sent]
        return [*sent, *(mask_of(sent[at]) for at in self.sent_masks)]


def with_masks(tensors: Sequence[tf.Tensor], number: int, places: Sequence[int]) -> list[tf.Tensor]:
    """So many tensors, with those behind them as masks of the ones at these places."""
    values = list(tensors[:number])
    for at, mask in zip(places, tensors[number:], strict=True):
        set_mask(values[at], mask)
    return values


def calls_of(model: keras.Model) -> list[Call]:
    """The calls of a functional or sequential model, in the order in which it runs them.

    Raises:
        UserError: the model is neither, so that nobody knows where it could be split.
    """
    return calls_of_nodes(nodes_of(model))


def calls_of_nodes(nodes: Sequence[Any]) -> list[Call]:
    """The calls that :func:`nodes_of` has found."""
    calls: list[Call] = []
    times: dict[int, int] = {}
    for node in nodes:
        layer = node.operation
        times[id(layer)] = number = times.get(id(layer), 0) + 1
        name = layer.name if number == 1 else f"{layer.name}:{number}"
        inputs, outputs = tuple(node.input_tensors), tuple(node.outputs)
        calls.append(Call(name, layer, inputs, outputs, node.arguments))
    return calls


def parts_of_split(calls: Sequence[Call], names: Sequence[str]) -> tuple[range, ...]:
    """The calls of each stage, where stages begin with the layers of these names.

    Raises:
        UserError: there is no such layer, or they are not in the model's order.
    """
    places = {call.name: number for number, call in enumerate(calls)}
    for name in names:
        if name not in places:
            raise UserError(
                f"parallel.split names {name}{did_you_mean(name, list(places))}, which is no layer "
                f"of the model; a stage begins with one of {', '.join(places)}"
            )
    begins = [places[name] for name in names]
    if begins != sorted(set(begins)) or 0 in begins:
        raise UserError(
            f"parallel.split is {', '.join(names)}; give the layers with which the second and the "
            f"further stages begin, in the order of the model, which is {', '.join(places)}"
        )
    return tuple(itertools.starmap(range, itertools.pairwise([0, *begins, len(calls)])))


def split(model: keras.Model, parts: Sequence[range]) -> list[Stage]:
    """The stages of a model.

    Args:
        model: functional or sequential.
        parts: for each stage, its calls among those of :func:`calls_of`; together they are all, in
            their order (see :func:`ooodist.planner.pipeline.partition.partition`).

    Raises:
        UserError: the parts are not all calls in their order, or the model cannot be split.
    """
    calls = calls_of(model)
    if [number for part in parts for number in part] != [*range(len(calls))] or not all(parts):
        raise UserError(
            f"stages of calls {', '.join(map(str, parts))}: a model of {len(calls)} calls is split "
            f"into parts that follow each other, none of them empty, from 0 to {len(calls)}"
        )
    last = len(parts) - 1
    crossing = _crossing(model, calls, parts)
    stages = []
    for number, part in enumerate(parts):
        own = tuple(calls[part.start : part.stop])
        received = tuple(crossing[number - 1]) if number > 0 else ()
        sent = tuple(crossing[number]) if number < last else tuple(model.outputs)
        outputs = {id(symbol) for call in own for symbol in call.outputs}
        made = _once(symbol for symbol in sent if id(symbol) in outputs)
        needed = _once(s for call in own for s in call.inputs if id(s) not in outputs)
        used = {id(symbol) for symbol in (*needed, *sent)}
        reads = tuple(symbol for symbol in model.inputs if id(symbol) in used)
        part_of_model = _model_of(own, needed, made, f"{model.name}_stage_{number}")
        stages.append(Stage(number, own, part_of_model, reads, received, sent, needed, made))
    if any(mask_of(symbol) is not None for call in calls for symbol in call.outputs):
        return _with_masks(model, stages)
    return stages


def _with_masks(model: keras.Model, stages: Sequence[Stage]) -> list[Stage]:
    """The stages, with what has a mask when it is sent.

    Symbolic tensors do not tell: some layers take the mask off what they have been given
    (MultiHeadAttention in Keras 3.15), so that it depends on who has been there before.
    """
    places: list[tuple[int, ...]] = [()]

    def run(*tensors: tf.Tensor) -> None:
        values = {id(s): tensor for s, tensor in zip(model.inputs, tensors, strict=True)}
        sent: list[tf.Tensor] = []
        for stage in stages:
            # In one graph, masks stay with their tensors.
            sent = stage.run([*(values[id(s)] for s in stage.reads), *sent], training=True)
            places.append(tuple(at for at, t in enumerate(sent) if mask_of(t) is not None))

    specs = [tf.TensorSpec(symbol.shape, symbol.dtype) for symbol in model.inputs]
    tf.function(run, autograph=False).get_concrete_function(*specs)
    return [
        replace(stage, received_masks=received, sent_masks=sent)
        for stage, (received, sent) in zip(stages, itertools.pairwise(places), strict=True)
    ]


def _model_of(
    calls: Sequence[Call], needed: Sequence[Symbol], made: Sequence[Symbol], name: str
) -> keras.Model:
    """The layers called once more, from inputs of their own.

    ``keras.Model(needed, made)`` is meant for this, but takes a call of a layer for the input where
    another call of that layer has made the input (Keras 3.15).
    """
    inputs = [keras.Input(batch_shape=symbol.shape, dtype=symbol.dtype) for symbol in needed]
    values = {id(symbol): value for symbol, value in zip(needed, inputs, strict=True)}
    for call in calls:
        arguments, options = call.arguments.fill_in(values)
        outputs = tf.nest.flatten(call.layer(*arguments, **options))
        values |= {id(s): value for s, value in zip(call.outputs, outputs, strict=True)}
    return keras.Model(inputs, [values[id(symbol)] for symbol in made], name=name)


def sent_specs(
    model: keras.Model, stages: Sequence[Stage], inputs: Sequence[tf.TensorSpec]
) -> list[tuple[tf.TensorSpec, ...]]:
    """Shapes and types of what each stage sends, and then of its masks.

    Args:
        model: that was split.
        stages: all of it.
        inputs: of a micro-batch, one for each input of the model.

    Raises:
        UserError: a shape depends on the data.
    """
    specs: list[tuple[tf.TensorSpec, ...]] = []

    def run(*tensors: tf.Tensor) -> None:
        values = {id(s): tensor for s, tensor in zip(model.inputs, tensors, strict=True)}
        sent: list[tf.Tensor] = []
        for stage in stages:
            sent = stage.run([*(values[id(s)] for s in stage.reads), *sent], training=True)
            for symbol, tensor in zip(stage.sent, sent, strict=False):
                _check_sent(stage, symbol, tensor)
            specs.append(tuple(tf.TensorSpec(t.shape, t.dtype) for t in sent))

    tf.function(run, autograph=False).get_concrete_function(*inputs)
    return specs


def _check_sent(stage: Stage, symbol: Symbol, tensor: tf.Tensor) -> None:
    layer = next((c.name for c in stage.calls if any(symbol is out for out in c.outputs)), "input")
    if not tensor.shape.is_fully_defined():
        raise UserError(
            f"the output of {layer}, in stage {stage.number}, has shape {tensor.shape}: what goes "
            "from stage to stage must have the same shape for every micro-batch; split the model "
            "elsewhere, or make all samples alike"
        )


def crossing_bytes(model: keras.Model, calls: Sequence[Call], samples: int) -> list[int]:
    """For each call, the bytes that are sent if a stage ends with it; 0 for the last.

    Args:
        model: functional or sequential.
        calls: all of it.
        samples: of a micro-batch.
    """
    parts = [range(number, number + 1) for number in range(len(calls))]
    crossing = _crossing(model, calls, parts)
    return [sum(_symbol_bytes(s, samples) for s in those) for those in crossing] + [0]


def _symbol_bytes(symbol: Symbol, samples: int) -> int:
    """With its mask."""
    mask, count = mask_of(symbol), 1
    for size in symbol.shape[1:]:
        count *= size or 1  # an open size is refused when the model is split there
    own = samples * count * int(tf.as_dtype(symbol.dtype).size)
    return own if mask is None else own + _symbol_bytes(mask, samples)


def shared_variables(stages: Sequence[Stage]) -> dict[str, tuple[int, ...]]:
    """The trained variables that several stages have, by path, with the numbers of these stages.

    The gradient of such a variable is the sum of those of its stages.
    """
    numbers: dict[str, list[int]] = {}
    for stage in stages:
        for variable in stage.model.trainable_variables:
            numbers.setdefault(variable.path, []).append(stage.number)
    return {path: tuple(those) for path, those in numbers.items() if len(those) > 1}


def _crossing(
    model: keras.Model, calls: Sequence[Call], parts: Sequence[range]
) -> list[list[Symbol]]:
    """What goes from each stage to the next, in the order in which it is made."""
    stage_of = [number for number, part in enumerate(parts) for _ in part]
    needed_until = {id(symbol): len(parts) - 1 for symbol in model.outputs}
    for stage, call in zip(stage_of, calls, strict=True):
        for symbol in call.inputs:
            needed_until[id(symbol)] = max(needed_until.get(id(symbol), 0), stage)
    crossing: list[list[Symbol]] = [[] for _ in parts[1:]]
    for stage, call in zip(stage_of, calls, strict=True):
        for symbol in call.outputs:
            for boundary in range(stage, needed_until.get(id(symbol), stage)):
                crossing[boundary].append(symbol)
    return crossing


def _once(symbols: Iterable[Symbol]) -> tuple[Symbol, ...]:
    return tuple({id(symbol): symbol for symbol in symbols}.values())


def nodes_of(model: Any) -> list[Any]:
    """Keras's own list of the calls of a model, or keras.Function, in the order of execution.

    Raises UserError: the model is a subclass, with a ``call`` of its own.
    """
    if isinstance(model, keras.Sequential):
        model = keras.Model(model.inputs, model.outputs)
    nodes = function_nodes(model)
    if nodes is None:
        raise UserError(
            f"model {model.name} is a subclass of keras.Model with a call of its own, which cannot "
            "be split into stages: build it of layers, as keras.Model(inputs, outputs)"
        )
    return nodes
