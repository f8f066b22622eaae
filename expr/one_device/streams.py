"""Lets XLA carry out operations of a step on a second stream of the GPU.

XLA runs a call on a stream of its own if the call has the frontend attribute
``_xla_stream_annotation`` (openxla/xla, pull requests 17982 and 19462), but it never sees the calls
of a traced step: TensorFlow inlines them first. So the operations are compiled to StableHLO by
themselves, and take part in the step as an XlaCallModule, which reaches XLA as a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_call_module
from tensorflow.core.framework.attr_value_pb2 import AttrValue

VERSION = 9  # of XlaCallModule
ATTRIBUTES = {"_xla_stream_annotation": "1", "inlineable": "false"}


def on_second_stream(
    operations: Iterable[tf.Operation], outputs: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Puts operations of the step that is being traced on the second stream.

    Args:
        operations: in an order in which they can run; none has a resource as an input.
        outputs: what is needed of them. What they computed so far is then computed by nobody.

    Returns:
        what takes the place of ``outputs``.
    """
    inside = with_whole_numbers(operations)
    made = {tensor.ref() for op in inside for tensor in op.outputs}
    read = (tensor for op in inside for tensor in op.inputs)
    inputs = list({each.ref(): each for each in read if each.ref() not in made}.values())

    def alone(*arguments: tf.Tensor) -> list[tf.Tensor]:
        known = {each.ref(): argument for each, argument in zip(inputs, arguments, strict=True)}
        for op in inside:
            copy = tf.compat.v1.get_default_graph().create_op(
                op.type,
                [known[each.ref()] for each in op.inputs],
                [each.dtype for each in op.outputs],
                attrs={key: op.node_def.attr[key] for key in op.node_def.attr if key[0] != "_"},
            )
            known |= {old.ref(): new for old, new in zip(op.outputs, copy.outputs, strict=True)}
        return [known[each.ref()] for each in outputs]

    with tf.init_scope():
        compiled = tf.function(alone, jit_compile=True, autograph=False)
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in inputs]
        module = compiled.experimental_get_compiler_ir(*specs)(stage="stablehlo_serialized")
    results = xla_call_module(
        args=inputs,
        version=VERSION,
        module=module,
        Sout=[each.shape for each in outputs],
        Tout=[each.dtype for each in outputs],
        platforms=["CUDA" if tf.config.list_physical_devices("GPU") else "CPU"],
    )
    attributes = AttrValue(s=frontend_attributes(ATTRIBUTES))
    results[0].op._set_attr("_XlaFrontendAttributes", attributes)  # noqa: SLF001
    return list(results)


def with_whole_numbers(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Adds what computes shapes and axes, which XLA must know when it compiles."""
    inside: dict[tf.Operation, None] = {}

    def add(op: tf.Operation) -> None:
        for tensor in op.inputs:
            if tensor.dtype in (tf.int32, tf.int64) and tensor.op.type != "Placeholder":
                add(tensor.op)
        inside.setdefault(op)

    for op in operations:
        add(op)
    return list(inside)


def frontend_attributes(values: dict[str, str]) -> bytes:
    """Returns a message xla.FrontendAttributes, whose only field, the first, is a map."""
    return b"".join(_field(1, _field(1, key) + _field(2, value)) for key, value in values.items())


def _field(number: int, content: str | bytes) -> bytes:
    """A field of a protocol buffer of fewer than 128 bytes."""
    data = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2, len(data)]) + data
