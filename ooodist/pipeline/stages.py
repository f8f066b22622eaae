"""Splits a Keras model into stages, each a Keras model of its own with the same layers.

A model is a list of layer calls in execution order; a stage is a contiguous part of that list. What
a stage makes and a later one needs is passed from stage to stage, also through those that do not
use it::

    calls     a   b   c | d   e | f   g
    stage         0     |   1   |   2         b is needed by c, d and g:
                     -> b, c -> b, e          0 sends b and c, 1 sends b and e

The inputs of the model are not sent: each stage reads those that it needs from the data. Where
Keras has attached a mask to a sent tensor (``mask_zero``, a Masking layer), the mask is sent, too,
after all tensors.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from ooodist.compat.keras_deferred import standing_in
from ooodist.compat.keras_graph import function_nodes, mask_of, set_mask
from ooodist.errors import UserError
from ooodist.step.backward import names_by_id
from ooodist.util.yaml_dataclass import did_you_mean

Symbol: TypeAlias = keras.KerasTensor


class Call(NamedTuple):
    """One use of a layer; a layer that is used twice has two calls.

    Attributes:
        name: the layer's name; from its second call on with a number appended, as in ``dense:2``.
        layer: a layer or another Keras operation.
        inputs, outputs: symbolic tensors; a mask is one of them.
        arguments: the arguments of the call, in Keras's representation.
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
        number: counted from 0.
        calls: the calls of the whole model that it makes.
        model: made of these calls; shares layers and weights with the whole model.
        reads: inputs of the whole model that it needs.
        received: what it receives from the previous stage.
        sent: what it sends to the next stage; for the last one, the outputs of the model.
        needed, made: inputs and outputs of ``model``.
        received_masks, sent_masks: indices into ``received`` and ``sent`` of the tensors with
            masks.
        names: those of the variables of the whole model, by id; see :func:`names_by_id`.
    """

    number: int
    calls: tuple[Call, ...]
    model: keras.Model
    reads: tuple[Symbol, ...]
    received: tuple[Symbol, ...]
    sent: tuple[Symbol, ...]
    needed: tuple[Symbol, ...]
    made: tuple[Symbol, ...]
    received_masks: tuple[int, ...] = ()
    sent_masks: tuple[int, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict, repr=False)

    def name_of(self, variable: keras.Variable) -> str:
        """What identifies a variable of the whole model, on all ranks."""
        return self.names[id(variable)]

    def run(
        self, inputs: Sequence[tf.Tensor], *, training: bool, samples: int | None = None
    ) -> list[tf.Tensor]:
        """The tensors that the stage sends, followed by their masks.

        Args:
            inputs: in the order of ``reads`` and then ``received``, followed by the masks of these.
            training: as for any Keras model.
            samples: of the micro-batch, given to tensors of which a layer has lost it
                (TextVectorization, Lambda, ``py_function``); None: shapes stay as they are.
        """
        symbols, first = (*self.reads, *self.received), len(self.reads)
        tensors = with_masks(inputs, len(symbols), [first + at for at in self.received_masks])
        values = {id(symbol): value for symbol, value in zip(symbols, tensors, strict=True)}
        with warnings.catch_warnings():
            # Keras warns that the mask is lost in a nested model, but the layers in it do see it.
            warnings.filterwarnings(
                "ignore", f"Layer '{self.model.name}'.*passed an input with a mask"
            )
            made = self.model([values[id(symbol)] for symbol in self.needed], training=training)
        values |= {id(s): value for s, value in zip(self.made, tf.nest.flatten(made), strict=True)}
        sent = [_sized(values[id(symbol)], symbol.shape, samples) for symbol in self.sent]
        return [*sent, *(mask_of(sent[at]) for at in self.sent_masks)]


def _sized(tensor: tf.Tensor, shape: Sequence[int | None], samples: int | None) -> tf.Tensor:
    """A tensor with its mask, both with the shape that Keras knows for so many samples.

    Checked where the graph runs: a first axis need not be that of the samples.
    """
    mask = mask_of(tensor)
    if samples is not None and not tensor.shape.is_fully_defined():
        tensor = tf.ensure_shape(tensor, (samples, *shape[1:]))
    if mask is None:
        return tensor
    if samples is not None and not mask.shape.is_fully_defined():
        rank = 2 if mask.shape.rank is None else mask.shape.rank
        mask = tf.ensure_shape(mask, tensor.shape[:rank])
    set_mask(tensor, mask)
    return tensor


def with_masks(tensors: Sequence[tf.Tensor], number: int, places: Sequence[int]) -> list[tf.Tensor]:
    """The first ``number`` tensors; the others become masks of those at ``places``."""
    values = list(tensors[:number])
    for at, mask in zip(places, tensors[number:], strict=True):
        set_mask(values[at], mask)
    return values


def calls_of(model: keras.Model) -> list[Call]:
    """The calls of a functional or sequential model, in execution order.

    Raises:
        UserError: the model is neither, so that it is unknown where it could be split.
    """
    return calls_of_nodes(nodes_of(model))


def calls_of_nodes(nodes: Sequence[Any]) -> list[Call]:
    """The calls of the nodes that :func:`nodes_of` has found."""
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
    """The calls of each stage, given the names of the layers at which stages 1, 2, … begin.

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
    """Splits a model into stages.

    Args:
        model: functional or sequential.
        parts: for each stage, the indices of its calls in :func:`calls_of`; together they cover all
            calls in order (see :func:`ooodist.planner.pipeline.partition.partition`).

    Raises:
        UserError: the parts do not cover all calls in order, or the model cannot be split.
    """
    calls = calls_of(model)
    if [number for part in parts for number in part] != [*range(len(calls))] or not all(parts):
        raise UserError(
            f"stages of calls {', '.join(map(str, parts))}: a model of {len(calls)} calls is split "
            f"into parts that follow each other, none of them empty, from 0 to {len(calls)}"
        )
    last = len(parts) - 1
    crossing, names = _crossing(model, calls, parts), names_by_id(model)
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
        stages.append(
            Stage(number, own, part_of_model, reads, received, sent, needed, made, names=names)
        )
    if any(mask_of(symbol) is not None for call in calls for symbol in call.outputs):
        return _with_masks(model, stages, training=True)
    return stages


def for_evaluation(model: keras.Model, stages: Sequence[Stage]) -> list[Stage]:
    """The stages of a model with the masks that they exchange without training."""
    if not any(stage.sent_masks for stage in stages):
        return list(stages)
    bare = [replace(stage, received_masks=(), sent_masks=()) for stage in stages]
    return _with_masks(model, bare, training=False)


def _with_masks(model: keras.Model, stages: Sequence[Stage], *, training: bool) -> list[Stage]:
    """The stages with ``received_masks`` and ``sent_masks`` set, found by tracing them.

    Symbolic tensors do not tell: some layers remove the mask from their input (MultiHeadAttention
    in Keras 3.15), so that it depends on which layer has seen a tensor before.
    """
    places: list[tuple[int, ...]] = [()]

    def run(*tensors: tf.Tensor) -> None:
        values = {id(s): tensor for s, tensor in zip(model.inputs, tensors, strict=True)}
        sent: list[tf.Tensor] = []
        for stage in stages:
            # Within one graph, masks stay attached to their tensors.
            sent = stage.run([*(values[id(s)] for s in stage.reads), *sent], training=training)
            places.append(tuple(at for at, t in enumerate(sent) if mask_of(t) is not None))

    specs = [tf.TensorSpec(symbol.shape, symbol.dtype) for symbol in model.inputs]
    _trace(model, run, specs)
    return [
        replace(stage, received_masks=received, sent_masks=sent)
        for stage, (received, sent) in zip(stages, itertools.pairwise(places), strict=True)
    ]


def _trace(model: keras.Model, run: Callable[..., None], specs: Sequence[tf.TensorSpec]) -> None:
    """Traces a function for what it notes of its tensors; the model's weights need no values."""
    with standing_in(model.variables, with_memory=False):
        tf.function(run, autograph=False).get_concrete_function(*specs)


def _model_of(
    calls: Sequence[Call], needed: Sequence[Symbol], made: Sequence[Symbol], name: str
) -> keras.Model:
    """Makes a model by calling the layers once more, on inputs of its own.

    ``keras.Model(needed, made)`` is meant for this, but when a layer is called twice and an input
    of the model comes from one of its calls, takes the other call for that input (Keras 3.15).
    """
    inputs = [keras.Input(batch_shape=symbol.shape, dtype=symbol.dtype) for symbol in needed]
    values = {id(symbol): value for symbol, value in zip(needed, inputs, strict=True)}
    for call in calls:
        arguments, options = call.arguments.fill_in(values)
        outputs = tf.nest.flatten(call.layer(*arguments, **options))
        values |= {id(s): value for s, value in zip(call.outputs, outputs, strict=True)}
    return keras.Model(inputs, [values[id(symbol)] for symbol in made], name=name)


def sent_specs(
    model: keras.Model,
    stages: Sequence[Stage],
    inputs: Sequence[tf.TensorSpec],
    *,
    training: bool = True,
) -> list[tuple[tf.TensorSpec, ...]]:
    """Shapes and dtypes of what each stage sends: its tensors, then their masks.

    Args:
        model: the model that was split.
        stages: all its stages.
        inputs: specs of a micro-batch, one for each input of the model.
        training: as for any Keras model.

    Raises:
        UserError: a shape depends on the data.
    """
    specs: list[tuple[tf.TensorSpec, ...]] = []

    def run(*tensors: tf.Tensor) -> None:
        values = {id(s): tensor for s, tensor in zip(model.inputs, tensors, strict=True)}
        sent: list[tf.Tensor] = []
        for stage in stages:
            received = [*(values[id(s)] for s in stage.reads), *sent]
            sent = stage.run(received, training=training, samples=inputs[0].shape[0])
            for symbol, tensor in zip(stage.sent, sent, strict=False):
                _check_sent(stage, symbol, tensor)
            specs.append(tuple(tf.TensorSpec(t.shape, t.dtype) for t in sent))

    _trace(model, run, inputs)
    return specs


def _check_sent(stage: Stage, symbol: Symbol, tensor: tf.Tensor) -> None:
    layer = next((c.name for c in stage.calls if any(symbol is out for out in c.outputs)), "input")
    if not tensor.shape.is_fully_defined():
        unknown = [str(axis) for axis, size in enumerate(tensor.shape) if size is None]
        raise UserError(
            f"the output of {layer}, in stage {stage.number}, has shape {tensor.shape}: what goes "
            "from stage to stage must have the same shape for every micro-batch, and nothing tells "
            f"the size of axis {', '.join(unknown)}; fix it where it comes from "
            "(TextVectorization(output_sequence_length=…), Lambda(output_shape=…), inputs padded "
            "to one length), or split the model elsewhere"
        )


def crossing_bytes(model: keras.Model, calls: Sequence[Call], samples: int) -> list[int]:
    """Finds, for each call, the bytes that are sent if a stage ends with it; 0 for the last.

    Args:
        model: functional or sequential.
        calls: all calls of the model.
        samples: samples of a micro-batch.
    """
    parts = [range(number, number + 1) for number in range(len(calls))]
    crossing = _crossing(model, calls, parts)
    return [sum(_symbol_bytes(s, samples) for s in those) for those in crossing] + [0]


def _symbol_bytes(symbol: Symbol, samples: int) -> int:
    """The bytes of a tensor and its mask."""
    mask, count = mask_of(symbol), 1
    for size in symbol.shape[1:]:
        count *= size or 1  # an unknown size is refused when the model is split there
    own = samples * count * int(tf.as_dtype(symbol.dtype).size)
    return own if mask is None else own + _symbol_bytes(mask, samples)


def _crossing(
    model: keras.Model, calls: Sequence[Call], parts: Sequence[range]
) -> list[list[Symbol]]:
    """What is sent from each stage to the next, in the order in which it is made."""
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
    """Keras's own list of the calls of a model or keras.Function, in execution order.

    Raises UserError if the model is a subclass with a ``call`` of its own.
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


def inputs_read_by(stage: Stage, model: keras.Model) -> list[int]:
    """The indices of the model's inputs that a stage reads."""
    read = {id(symbol) for symbol in stage.reads}
    return [place for place, symbol in enumerate(model.inputs) if id(symbol) in read]
