"""Estimates the memory that the tensors of a TensorFlow graph occupy.

Sizes are those of the traced graph, parts of which TensorFlow may fuse away; a tensor of unknown
shape counts as 0 bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import TypeAlias

import tensorflow as tf

from ooodist.graph.ops import num_bytes

# Ops that forward a buffer, or a part of it; their result needs no memory of its own.
PASSING = frozenset(
    """
    CheckNumerics EnsureShape ExpandDims Identity IdentityN PreventGradient Reshape Squeeze
    StopGradient
    """.split()  # noqa: SIM905
)
# Ops that write their result over an input that no other op will read.
OVERWRITING = frozenset(
    """
    Add AddN AddV2 BiasAdd Div Elu EluGrad Erf Exp LeakyRelu LeakyReluGrad Log Maximum Minimum Mul
    Neg Pow RealDiv Relu Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad
    Softmax Softplus SoftplusGrad Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad
    """.split()  # noqa: SIM905
)
# Ops whose results exist all the time, whatever a step does.
LASTING = frozenset({"Const", "Placeholder", "ReadVariableOp"})

Buffer: TypeAlias = tuple[tf.Operation, int]


def buffer_of(tensor: tf.Tensor) -> Buffer:
    """The op and the output index that own the memory of a tensor."""
    op, index = tensor.op, tensor.value_index
    while op.type in PASSING:
        source = op.inputs[index]  # the place matters for IdentityN; the others have one output
        op, index = source.op, source.value_index
    return op, index


def workspace_bytes(ops: Sequence[tf.Operation], others: Collection[tf.Tensor]) -> int:
    """The peak bytes of the tensors that these ops produce for each other.

    Args:
        ops: the ops in the order in which they run.
        others: tensors that come from elsewhere or outlive the ops; they do not count.
    """
    reads = [[buffer_of(tensor) for tensor in op.inputs] for op in ops]
    last_reader = {buffer: op for op, those in zip(ops, reads, strict=True) for buffer in those}
    for_others = {buffer_of(tensor) for tensor in others}
    sizes = {
        (op, index): num_bytes(tensor)
        for op in ops
        if op.type not in PASSING | LASTING
        for index, tensor in enumerate(op.outputs)
    }
    # Backward, so that a buffer that is overwritten several times is credited to its last owner.
    place: dict[Buffer, Buffer] = {buffer: buffer for buffer in sizes}
    for op, those in zip(reversed(ops), reversed(reads), strict=True):
        result = (op, 0)
        for buffer in those if op.type in OVERWRITING else ():
            is_free = last_reader[buffer] is op and buffer not in for_others
            if is_free and sizes.get(buffer) == sizes[result]:
                place[buffer] = place[result]
                break
    begin: dict[Buffer, int] = {}
    end: dict[Buffer, int] = {}
    for number, (op, those) in enumerate(zip(ops, reads, strict=True)):
        for buffer in (*those, *((op, index) for index in range(len(op.outputs)))):
            if buffer in place and place[buffer] not in for_others:
                begin.setdefault(place[buffer], number)
                end[place[buffer]] = number
    changes = [0] * (len(ops) + 1)
    for buffer, number in begin.items():
        changes[number] += sizes[buffer]
        changes[end[buffer] + 1] -= sizes[buffer]
    return max(itertools.accumulate(changes), default=0)
