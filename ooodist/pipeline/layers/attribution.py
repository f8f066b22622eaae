"""Finds out to which call of a layer the ops of a traced step belong, and what they save.

::

    op                                        owner
    model/dense_1/MatMul                      F of the call of dense_1
    gradient_tape/model/dense_1/MatMul        dX of it
    gradient_tape/model/dense_1/MatMul_1      dW of it
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import tensorflow as tf

from ooodist.pipeline.stages import Call
from ooodist.profiler.owners import Owner
from ooodist.profiler.saved_tensors import saved_tensors
from ooodist.profiler.step import StepToMeasure

FOR_INPUT, FOR_WEIGHT, FROM_INPUT = UNTIL = "from F to I", "from F to W", "from I to W"
_OF_GRADIENT = "gradient_tape/"


def kinds_of(traced: StepToMeasure) -> dict[str, str]:
    """The kind, F, dX or dW, of each unit of a step."""
    return {unit.name: unit.kind for unit in (*traced.step.forward, *traced.step.backward)}


def owner_of(kind: str, call: int) -> str:
    """The owner of the ops of this kind, F, dX or dW, of the call with this number."""
    return f"{kind}:{call}"


def by_call(
    traced: StepToMeasure, model_name: str, calls: Sequence[Call]
) -> dict[tf.Operation, Owner]:
    """Finds, for each op, what it is part of: F, dX or dW of a call, or the update of weights.

    The name of an op tells its call (see :class:`_Scopes`), the unit its kind. Ops of no unit are
    the forward pass of layers before the first weight, or what a backward pass needs besides.
    """
    scopes, kinds = _Scopes(model_name, calls), kinds_of(traced)
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
            owners[op] = owner_of(kind, number)
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
        """The number of the call; None if the op is not part of the model."""
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
    """The layer of a unit such as ``dX:block/dense#2``; empty if it has none."""
    path = unit.partition(":")[2].partition("#")[0]
    return next((part for part in path.split("/") if part in layers), "")


def saved_by_layer(traced: StepToMeasure, calls: Sequence[Call]) -> dict[tuple[str, str], int]:
    """The bytes of saved tensors by (name of the layer that makes them, one of UNTIL)."""
    kinds, layers = kinds_of(traced), {call.layer.name for call in calls}
    saved: dict[tuple[str, str], int] = {}
    for tensor in saved_tensors(traced.step, traced.owner_of, traced.weights):
        users = {kinds[name] for name in tensor.used_by} - {"F"}
        made_by = kinds[tensor.made_by]
        if not users or made_by == "dW":
            continue  # used in the forward pass alone, or a weight gradient
        is_for_w = "dW" in users
        if made_by == "dX" and not is_for_w:
            continue  # passed from one I to the next
        until = FROM_INPUT if made_by == "dX" else FOR_WEIGHT if is_for_w else FOR_INPUT
        layer = _layer_of(tensor.made_by, layers) or calls[0].layer.name
        saved[layer, until] = saved.get((layer, until), 0) + tensor.num_bytes
    return saved
