"""Which memory the tensors of a TensorFlow graph take.

Sizes are those of the traced graph, of which TensorFlow may fuse a part away; tensors of an open
shape count nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import tensorflow as tf

from ooodist.backprop.graph import num_bytes

# Ops that pass a buffer on, or hand out a part of it: their result takes no memory of its own.
PASSING = frozenset(
    """
    CheckNumerics EnsureShape ExpandDims Identity IdentityN PreventGradient Reshape Squeeze
    StopGradient
    """.split()  # noqa: SIM905
)
# What these hand out is there all the time, whatever a step does.
LASTING = frozenset({"Const", "Placeholder", "ReadVariableOp"})

Buffer: TypeAlias = tuple[tf.Operation, int]


def buffer_of(tensor: tf.Tensor) -> Buffer:
    """Op and output that the memory of a tensor belongs to."""
    op, index = tensor.op, tensor.value_index
    while op.type in PASSING:
        source = op.inputs[index]  # of IdentityN; the others have one output, of the first input
        op, index = source.op, source.value_index
    return op, index


def workspace_bytes(ops: Sequence[tf.Operation], others: Collection[tf.Tensor]) -> int:
    """The most bytes that ops hold at once of what they make for each other.

    Args:
        ops: in the order in which they run.
        others: tensors that come from elsewhere or stay when the ops have run; they do not count.
    """
    made_for_others = {buffer_of(tensor) for tensor in others}
    last_use: dict[Buffer, tf.Operation] = {}
    for op in ops:
        if op.type not in PASSING:
            # What nobody reads is held while its op runs.
            last_use |= {(op, index): op for index in range(len(op.outputs))}
        last_use |= {buffer_of(tensor): op for tensor in op.inputs}
    sizes: dict[Buffer, int] = {}
    released: dict[tf.Operation, list[Buffer]] = {}
    for buffer, op in last_use.items():
        released.setdefault(op, []).append(buffer)
    held = most = 0
    for op in ops:
        for index, tensor in enumerate(op.outputs if op.type not in LASTING else ()):
            if (op, index) in last_use and (op, index) not in made_for_others:
                sizes[op, index] = num_bytes(tensor)
                held += sizes[op, index]
        most = max(most, held)
        held -= sum(sizes.get(buffer, 0) for buffer in released.get(op, ()))
    return most
