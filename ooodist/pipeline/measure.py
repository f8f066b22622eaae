"""Measures what the layers of a model, and then its stages, cost on this machine.

Layers are measured in a step of the whole model on one micro-batch, to find where to split it.
The resulting stages are measured on their ranks, as they will run.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ooodist.engines.gpu import seconds_of, wait_for_gpu
from ooodist.graph.ops import num_bytes
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.runtime.boundary import TensorBoundary
from ooodist.pipeline.stages import Call, calls_of, crossing_bytes
from ooodist.planner.pipeline.actions import (
    FORWARD,
    INPUT_GRADIENT,
    RECEIVE_BACKWARD,
    RECEIVE_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    WEIGHT_GRADIENT,
)
from ooodist.planner.pipeline.costs import RECEIVES_AHEAD, StageCost
from ooodist.planner.pipeline.layer_costs import LayerCost
from ooodist.profiler.compute import measure_owners
from ooodist.profiler.memory import saved_tensors
from ooodist.profiler.owners import Owner
from ooodist.profiler.state import preserved
from ooodist.profiler.step import StepToMeasure, trace_step

if TYPE_CHECKING:  # they import MPI, which measuring layers does not need
    from ooodist.pipeline.runtime.gradients import Gradients
    from ooodist.pipeline.runtime.runtime import Ran
    from ooodist.pipeline.runtime.update import Update
    from ooodist.pipeline.runtime.work import StageWork

LAYER_STEPS = 12
FEW_LAYER_STEPS = 3  # enough to balance stages, which are measured while they train
UPDATES = 7
_PART_OF = {  # the action to which the seconds of a transfer are added
    RECEIVE_FORWARD: FORWARD,
    SEND_FORWARD: FORWARD,
    RECEIVE_BACKWARD: INPUT_GRADIENT,
    SEND_BACKWARD: INPUT_GRADIENT,
}
_OF_GRADIENT = "gradient_tape/"
_UNTIL = _INPUT, _WEIGHT, _GRADIENT = "from F to I", "from F to W", "from I to W"


def measure_layers(
    model: keras.Model, batch: Any, microbatches: int, *, steps: int = LAYER_STEPS
) -> tuple[LayerCost, ...]:
    """Returns the costs of a model's calls (see :func:`ooodist.pipeline.stages.calls_of`).

    The model stays as it is.

    Args:
        model: compiled, functional or sequential.
        batch: as its data set yields it.
        microbatches: number of micro-batches into which it is split.
        steps: steps that are recorded; some more are run.

    Raises:
        UserError: the model or the batch cannot be split, or the step cannot be measured.
    """
    calls = calls_of(model)
    splitter = BatchSplitter(model, batch, microbatches)
    traced = trace_step(model, splitter.first())
    kinds = {unit.name: unit.kind for unit in (*traced.step.forward, *traced.step.backward)}
    owners = by_call(traced, model.name, calls, kinds)
    seconds = measure_owners(replace(traced, owner_of=owners), steps=steps).seconds
    updates = _updates(seconds)
    saved = _saved_bytes(traced, calls, kinds)
    sent = crossing_bytes(model, calls, splitter.size // microbatches)
    costs, seen = [], set()
    for number, (call, sent_bytes) in enumerate(zip(calls, sent, strict=True)):
        # Costs of a layer, rather than of one of its calls, go to its first call.
        first = id(call.layer) not in seen
        seen.add(id(call.layer))
        variables = getattr(call.layer, "trainable_variables", []) if first else []
        input_bytes, weight_bytes, gradient_bytes = (
            saved.get((call.layer.name, until), 0) if first else 0 for until in _UNTIL
        )
        costs.append(
            LayerCost(
                call.name,
                forward=seconds.get(_owner("F", number), 0.0),
                input_gradient=seconds.get(_owner("dX", number), 0.0),
                weight_gradient=seconds.get(_owner("dW", number), 0.0),
                update=sum(updates.get(variable.path, 0.0) for variable in variables),
                # Weights and optimizer are on all ranks; accumulated gradients where they are made.
                base_bytes=sum(num_bytes(variable.value) for variable in variables),
                input_bytes=input_bytes,
                weight_bytes=weight_bytes,
                gradient_bytes=gradient_bytes,
                sent_bytes=sent_bytes,
                exchanged_bytes=sum(map(_summed_bytes, variables)),
            )
        )
    return tuple(costs)


def measure_stages(
    works: Mapping[int, StageWork],
    reads: Mapping[int, Sequence[int]],
    boundaries: Sequence[TensorBoundary],
    splitter: BatchSplitter,
    update: Update,
    gradients: Gradients,
    steps: Callable[[Callable[[], None]], list[Ran]],
) -> dict[int, StageCost]:
    """Returns the costs of this rank's stages, by number, without the links.

    They are measured in steps of the whole pipeline, in which an action meets the caches, messages
    and neighbors that it will meet. Stages compute on zeros: that takes no less time. All state is
    restored afterwards.

    Args:
        works: works of this rank's stages, by number.
        reads: which inputs of the model each stage needs, by index.
        boundaries: the boundary after each stage of the model but the last.
        splitter: knows the data.
        update: this rank's update; all ranks of the pipeline take part in it.
        gradients: what the stages add gradients to.
        steps: runs some steps of a schedule with I and W separate, and calls its argument before
            each; returns what this rank did.
    """
    inputs, targets = splitter.specs()
    optimizer = splitter.model.optimizer
    held = [*splitter.model.variables, *splitter.model.metrics_variables, *optimizer.variables]

    def begin() -> None:
        for number, work in works.items():
            data = [_zeros(inputs[place]) for place in reads[number]]
            compared = [_zeros(spec) for spec in targets]
            work.begin([data] * splitter.microbatches, [compared] * splitter.microbatches)

    with preserved([variable.value for variable in held]):
        seconds = seconds_by_kind(steps(begin))
        gradients.clear()
        updates = [seconds_of(lambda: _update(update, gradients)) for _ in range(UPDATES)]
    return costs_of(works, boundaries, gradients, seconds, statistics.median(updates))


def costs_of(
    works: Mapping[int, StageWork],
    boundaries: Sequence[TensorBoundary],
    gradients: Gradients,
    seconds: Mapping[tuple[int, str], float],
    update_seconds: float,
) -> dict[int, StageCost]:
    """Returns the costs of this rank's stages, by number, without the links.

    Args:
        works: works of this rank's stages, by number.
        boundaries: the boundary after each stage of the model but the last.
        gradients: what the stages add gradients to.
        seconds: seconds of F, I and W of each stage, by (stage, kind).
        update_seconds: seconds of the end of a step.
    """
    costs: dict[int, StageCost] = {}
    for number, work in works.items():
        _, behind = _around(boundaries, number)
        input_bytes, weight_bytes, gradient_bytes = work.saved_bytes
        costs[number] = StageCost(
            seconds[number, FORWARD],
            seconds[number, INPUT_GRADIENT],
            seconds[number, WEIGHT_GRADIENT],
            input_bytes,
            weight_bytes,
            gradient_bytes,
            sent_bytes=behind.num_bytes(FORWARD) if behind else 0,
        )
    last = max(works)  # trains if any stage of the rank does
    sums = sum(num_bytes(variable.value) for variable in gradients.variables)
    received, sent = [0], [0]
    for number, work in works.items():
        before, behind = _around(boundaries, number)
        if before:
            received.append(before.num_bytes(FORWARD))
            sent.append(before.num_bytes(INPUT_GRADIENT))
        if behind:
            received.append(behind.num_bytes(INPUT_GRADIENT))
            sent.append(work.output_bytes)
    # Receive buffers, and one message that is being sent. What an action makes of a received
    # message is part of its workspace, or of the saved activations.
    messages = RECEIVES_AHEAD * max(received) + max(sent)
    workspace = max(work.workspace_bytes for work in works.values())
    base = sums + messages + workspace
    costs[last] = replace(costs[last], update=update_seconds, base_bytes=base)
    return costs


class Awaited:
    """Wraps a stage's work so that an action ends when the GPU has finished, not when it is queued.

    Args:
        work: the work of a stage.
    """

    def __init__(self, work: StageWork) -> None:
        self._work = work

    def forward(self, microbatch: int, received: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        sent = self._work.forward(microbatch, received)
        wait_for_gpu()
        return sent

    def input_gradient(self, microbatch: int, received: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        gradients = self._work.input_gradient(microbatch, received)
        wait_for_gpu()
        return gradients

    def weight_gradient(self, microbatch: int) -> None:
        self._work.weight_gradient(microbatch)
        wait_for_gpu()


class Noted:
    """Records what steps took, except for the first, in which libraries tune themselves.

    Attributes:
        ran: the actions of these steps.
        updates: seconds of the end of each step.
    """

    def __init__(self) -> None:
        self.ran: list[Ran] = []
        self.updates: list[float] = []
        self._is_first = True

    def note(self, ran: Sequence[Ran], update_seconds: float) -> None:
        """Adds the actions of a step, and the seconds of its end."""
        if not self._is_first:
            self.ran += ran
            self.updates.append(update_seconds)
        self._is_first = False


def seconds_by_kind(ran: Sequence[Ran]) -> dict[tuple[int, str], float]:
    """Returns median seconds of each stage's F, I and W, with the transfers that belong to them."""
    found: dict[tuple[int, str], list[float]] = {}
    for each in ran:
        seconds = each.end - each.start - each.waited
        found.setdefault((each.action.stage, each.action.kind), []).append(seconds)
    medians = {key: statistics.median(those) for key, those in found.items()}
    total: dict[tuple[int, str], float] = {}
    for (stage, kind), seconds in medians.items():
        key = stage, _PART_OF.get(kind, kind)
        total[key] = total.get(key, 0.0) + seconds
    return total


def _update(update: Update, gradients: Gradients) -> None:
    """Runs the end of a step without the sums over replicas, which run beside the last W."""
    gradients.begin()
    update(gradients.sums())
    gradients.clear()


def _around(
    boundaries: Sequence[TensorBoundary], stage: int
) -> tuple[TensorBoundary | None, TensorBoundary | None]:
    """Returns the boundaries before and after a stage."""
    before = boundaries[stage - 1] if stage else None
    return before, boundaries[stage] if stage < len(boundaries) else None


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros(spec.shape, spec.dtype)


def _summed_bytes(variable: keras.Variable) -> int:
    """Returns the bytes of a weight's gradient as replicas sum it: MPI adds no 16-bit floats."""
    size = 8 if variable.dtype == "float64" else 4
    return size * math.prod(variable.shape)


def _owner(kind: str, call: int) -> str:
    return f"{kind}:{call}"


def by_call(
    traced: StepToMeasure, model_name: str, calls: Sequence[Call], kinds: Mapping[str, str]
) -> dict[tf.Operation, Owner]:
    """Returns, for each op, what it is part of: F, dX or dW of a call, or the update of weights.

    The name of an op tells its call (see :class:`_Scopes`), the unit its kind. Ops of no unit are
    the forward pass of layers before the first weight, or what a backward pass needs besides.
    """
    scopes = _Scopes(model_name, calls)
    by_layer = {call.layer.name: number for number, call in reversed(list(enumerate(calls)))}
    owners: dict[tf.Operation, Owner] = {}
    for op in traced.step.backward[0].ops[0].graph.get_operations():
        owner = traced.owner_of.get(op)
        if isinstance(owner, frozenset):
            owners[op] = owner
            continue
        is_backward = op.name.startswith(_OF_GRADIENT)
        number = scopes.call_of(op.name.removeprefix(_OF_GRADIENT), is_forward=not is_backward)
        if number is None and owner is not None:  # the loss, or a sum of gradients
            number = by_layer.get(_layer_of(owner, by_layer))
        if number is not None:
            kind = kinds[owner] if owner is not None else ("dX" if is_backward else "F")
            owners[op] = _owner(kind, number)
    return owners


class _Scopes:
    """Finds the call that made an op, by the op's name.

    Ops of a layer are named ``model/layer/…``, and TensorFlow appends numbers to both to make names
    unique: ``model_1/dense_1/MatMul`` may belong to ``dense`` or to ``dense_1``. So names are
    visited in the order in which ops are made, which is that of the calls.
    """

    def __init__(self, model_name: str, calls: Sequence[Call]) -> None:
        self._model = _numbered(model_name)
        self._layers = [_numbered(call.layer.name) for call in calls]
        self._calls: dict[str, int] = {}
        self._last = 0

    def call_of(self, name: str, *, is_forward: bool) -> int | None:
        """Returns the number of the call; None if the op is not part of the model."""
        model, _, inside = name.partition("/")
        if not self._model.fullmatch(model):
            return None
        scope = inside.partition("/")[0]
        if scope not in self._calls and is_forward:
            following = range(self._last, len(self._layers))
            found = (n for n in following if self._layers[n].fullmatch(scope))
            # What is no layer, such as a sum of two tensors, has no scope: it follows the last.
            self._last = self._calls[scope] = next(found, self._last)
        return self._calls.get(scope)


def _numbered(name: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(name)}(_\d+)?")


def _layer_of(unit: str, layers: Collection[str]) -> str:
    """Returns the layer of a unit such as ``dX:block/dense#2``; empty if it has none."""
    path = unit.partition(":")[2].partition("#")[0]
    return next((part for part in path.split("/") if part in layers), "")


def _updates(seconds: Mapping[Owner | None, float]) -> dict[str, float]:
    """Returns seconds of each weight's update; a joint cost is divided equally among weights."""
    updates: dict[str, float] = {}
    for owner, spent in seconds.items():
        if isinstance(owner, frozenset):
            for name in owner:
                updates[name] = updates.get(name, 0.0) + spent / len(owner)
    return updates


def _saved_bytes(
    traced: StepToMeasure, calls: Sequence[Call], kinds: Mapping[str, str]
) -> dict[tuple[str, str], int]:
    """Returns the bytes of saved tensors by (layer, one of _UNTIL)."""
    layers = {call.layer.name for call in calls}
    saved: dict[tuple[str, str], int] = {}
    for tensor in saved_tensors(traced.step, traced.owner_of, traced.weights):
        users = {kinds[name] for name in tensor.used_by} - {"F"}
        made_by = kinds[tensor.made_by]
        if not users or made_by == "dW":
            continue  # used in the forward pass alone, or a weight gradient
        is_for_w = "dW" in users
        if made_by == "dX" and not is_for_w:
            continue  # passed from one I to the next
        until = _GRADIENT if made_by == "dX" else _WEIGHT if is_for_w else _INPUT
        layer = _layer_of(tensor.made_by, layers) or calls[0].layer.name
        saved[layer, until] = saved.get((layer, until), 0) + tensor.num_bytes
    return saved
