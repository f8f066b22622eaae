"""Seconds of each unit of a step on a GPU that one does not have: its roofline.

A matrix product or convolution takes as long as the slower of its arithmetic and its memory traffic
at the GPU's peak rates (Williams, Waterman and Patterson, "Roofline", 2009); all else takes its
memory traffic. What is lost against the peaks is left to one efficiency factor per model, which
make_costs.py fits to a published training speed.

The published speeds are of compiled steps, so element-wise ops and reductions count as fused, as
XLA does: between two of them in one pass nothing goes through memory, unless it is there anyway
because something else (a convolution, or the backward pass) reads it. And a batch of products that
is only summed up, a weight's gradient for instance, is one product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from ooodist.graph.light_ops import LIGHT_OPS
from ooodist.graph.units import Unit

# They hand a tensor on under another shape or name.
FREE_OPS = frozenset(
    ("ExpandDims", "Identity", "IdentityN", "PreventGradient", "Reshape", "Squeeze", "StopGradient")
)
# A variable is read from memory by the ops that compute with it.
VARIABLE_OPS = frozenset({"Placeholder", "ReadVariableOp"})
BATCH_PRODUCTS = frozenset({"BatchMatMulV2", "BatchMatMulV3"})
FUSED_OPS = (LIGHT_OPS | {"BiasAdd", "BiasAddGrad", "Max", "Mean", "Min", "Prod", "Sum"}) - FREE_OPS


@dataclass(frozen=True)
class Gpu:
    """Peak rates: multiplications and additions a second with float16 inputs (tensor cores) and
    float32 ones, bytes a second from memory."""

    name: str
    float16_flops: float
    float32_flops: float
    bytes_per_second: float

    def seconds(self, units: Sequence[Unit]) -> dict[str, float]:
        """Of each unit of one pass, by name; no cache, no time to start a kernel."""
        fused = {op for unit in units for op in unit.ops if op.type in FUSED_OPS}
        return {unit.name: self._unit_seconds(unit, fused) for unit in units}

    def _unit_seconds(self, unit: Unit, fused: set[tf.Operation]) -> float:
        own = [op for op in unit.ops if op in fused]
        read = {tensor.ref(): tensor for op in own for tensor in map(_origin, op.inputs)}
        moved = [t for t in read.values() if t.op not in own and _in_memory(t, fused)]
        moved += [t for op in own for t in op.outputs if _in_memory(t, fused)]
        total = _num_bytes(moved) / self.bytes_per_second
        for op in unit.ops:
            if op.type not in FUSED_OPS | FREE_OPS | VARIABLE_OPS:
                half = any(tensor.dtype == tf.float16 for tensor in op.inputs)
                rate = self.float16_flops if half else self.float32_flops
                written = [tensor for tensor in op.outputs if _in_memory(tensor, fused)]
                traffic = _num_bytes([*op.inputs, *written])
                total += max(flops(op) / rate, traffic / self.bytes_per_second)
        return total


def flops(op: tf.Operation) -> int:
    """Multiplications and additions of a matrix product or convolution; 0 for any other op.

    Raises:
        ValueError: a shape is not static.
    """
    if op.type == "Conv2D":
        return 2 * _count(op.outputs[0]) * math.prod(op.inputs[1].shape[:3])
    if op.type == "Conv2DBackpropInput":
        return 2 * _count(op.inputs[2]) * math.prod(op.inputs[1].shape[:3])
    if op.type == "Conv2DBackpropFilter":
        return 2 * _count(op.inputs[2]) * math.prod(op.outputs[0].shape[:3])
    if op.type == "MatMul":
        summed = 0 if op.get_attr("transpose_a") else 1
        return 2 * _count(op.outputs[0]) * int(op.inputs[0].shape[summed])
    if op.type in BATCH_PRODUCTS:
        summed = -2 if op.get_attr("adj_x") else -1
        return 2 * _count(op.outputs[0]) * int(op.inputs[0].shape[summed])
    if op.type == "Einsum":
        return 2 * math.prod(_einsum_sizes(op).values())
    return 0


def _einsum_sizes(op: tf.Operation) -> dict[str, int]:
    """The size of each letter of an einsum's equation."""
    terms = op.get_attr("equation").decode().partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, op.inputs, strict=True):
        if "." in term:
            raise ValueError(f"{op.name}: einsum with an ellipsis, {term}")
        sizes |= zip(term, map(int, tensor.shape), strict=True)
    return sizes


def _in_memory(tensor: tf.Tensor, fused: set[tf.Operation]) -> bool:
    if tensor.op.type in BATCH_PRODUCTS:
        return any(user.type != "Sum" for user in _users(tensor))
    return tensor.op not in fused or any(user not in fused for user in _users(tensor))


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor as it was made, before it was reshaped or renamed."""
    while tensor.op.type in FREE_OPS and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return tensor


def _users(tensor: tf.Tensor) -> Iterable[tf.Operation]:
    """The ops that compute with a tensor, however it was reshaped or renamed on the way."""
    for op in tensor.consumers():
        if op.type in FREE_OPS:
            for output in op.outputs:
                yield from _users(output)
        else:
            yield op


def _num_bytes(tensors: Iterable[tf.Tensor]) -> int:
    # Whole numbers are shapes and indices, which are small, and may not be known before a run.
    return sum(_count(t) * t.dtype.size for t in tensors if t.dtype.is_floating)


def _count(tensor: tf.Tensor) -> int:
    count = tensor.shape.num_elements()
    if count is None:
        raise ValueError(f"{tensor.name} has no static shape but {tensor.shape}")
    return int(count)
