"""Finds the tensors that the units of a step keep in memory for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ooodist.graph.buffers import LASTING, PASSING, Buffer, buffer_of
from ooodist.graph.ops import num_bytes, ops_of
from ooodist.planner.costs import SavedTensor
from ooodist.profiler.owners import Owner, Weight
from ooodist.step.backward import TracedStep

LEAST_BYTES = 1024  # smaller tensors do not matter


def saved_tensors(
    step: TracedStep, owner_of: Mapping[tf.Operation, Owner], weights: Sequence[Weight]
) -> tuple[SavedTensor, ...]:
    """The saved tensors, made by one unit and read by others, and the weights' gradients.

    Sizes are those of the traced graph, parts of which TensorFlow may fuse away; tensors of unknown
    shape, tensors of less than LEAST_BYTES, and the weights themselves are left out.

    Args:
        step: one traced step.
        owner_of: the owners of its ops.
        weights: the weights that it trains.
    """
    units = [unit.name for unit in (*step.forward, *step.backward)]
    gradients = {buffer_of(op.outputs[0]) for weight in weights for op in ops_of(weight.gradient)}
    used_by: dict[Buffer, set[str]] = {}
    for op, user in owner_of.items():
        if isinstance(user, str) and op.type not in PASSING:
            for tensor in op.inputs:
                used_by.setdefault(buffer_of(tensor), set()).add(user)
    kept = []
    for buffer, users in used_by.items():
        op, index = buffer
        # A tensor of no unit, such as a cast of the input, exists before the first unit.
        made_by = owner_of.get(op, units[0])
        size = num_bytes(op.outputs[index])
        others = users - {made_by}
        if (
            others
            and isinstance(made_by, str)
            and size >= LEAST_BYTES
            and op.type not in LASTING
            and buffer not in gradients
        ):
            kept.append(SavedTensor(size, made_by, tuple(sorted(others, key=units.index))))
    completed_by = {name: unit.name for unit in step.backward for name in unit.variables}
    for weight in weights:
        size = num_bytes(weight.gradient)
        if size >= LEAST_BYTES:
            made_by = completed_by.get(weight.name, step.forward[-1].name)
            kept.append(SavedTensor(size, made_by, ()))
    return tuple(kept)
