"""Which memory the tensors of a TensorFlow graph take.

Sizes are those of the traced graph, of which TensorFlow may fuse a part away; tensors of an open
shape count nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import TypeAlias

import tensorflow as tf

from ooodist.graph.ops import num_bytes

# Ops that pass a buffer on, or hand out a part of it: their result takes no memory of its own.
PASSING = frozenset(
    """
    CheckNumerics EnsureShape ExpandDims Identity IdentityN PreventGradient Reshape Squeeze
    StopGradient
    """.split()  # noqa: SIM905
)
# Ops that write their result over an argument that nobody else is going to read.
OVERWRITING = frozenset(
    """
    Add AddN AddV2 BiasAdd Div Elu EluGrad Erf Exp LeakyRelu LeakyReluGrad Log Maximum Minimum Mul
    Neg Pow RealDiv Relu Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad
    Softmax Softplus SoftplusGrad Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad
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
    reads = [[buffer_of(tensor) for tensor in op.inputs] for op in ops]
    last_reader = {buffer: op for op, those in zip(ops, reads, strict=True) for buffer in those}
    for_others = {buffer_of(tensor) for tensor in others}
    sizes = {
        (op, index): num_bytes(tensor)
        for op in ops
        if op.type not in PASSING | LASTING
        for index, tensor in enumerate(op.outputs)
    }
    # Backwards, so that what is written over and over belongs to whom it belongs to at last.
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
