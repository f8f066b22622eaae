"""Lets XLA carry out operations of a step on a second stream of the GPU.

XLA runs a call on a stream of its own if the call has the frontend attribute
``_xla_stream_annotation`` (openxla/xla, pull requests 17982 and 19462), but it never sees the calls
of a traced step: TensorFlow inlines them first. So the operations are compiled to StableHLO by
themselves, and take part in the step as an XlaCallModule, which reaches XLA as a call.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_call_module
from tensorflow.compiler.xla.xla_data_pb2 import FrontendAttributes
from tensorflow.core.framework.attr_value_pb2 import AttrValue

from ooodist.graph.subgraphs import Part, Subgraphs

VERSION = 9  # of XlaCallModule
ATTRIBUTES = FrontendAttributes(map={"_xla_stream_annotation": "1", "inlineable": "false"})


def on_second_stream(
    subgraphs: Subgraphs, operations: Sequence[tf.Operation], outputs: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Puts operations of the step that is being traced on the second stream.

    Args:
        subgraphs: of the graph that is being traced.
        operations: none of them has a resource as an input.
        outputs: what is needed of them. What they computed so far is then computed by nobody.

    Returns:
        what takes the place of ``outputs``.
    """
    inputs = feeds(operations)
    alone = subgraphs.function(Part(inputs, outputs))
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
    attributes = AttrValue(s=ATTRIBUTES.SerializeToString())
    results[0].op._set_attr("_XlaFrontendAttributes", attributes)  # noqa: SLF001
    return list(results)


def feeds(operations: Sequence[tf.Operation]) -> list[tf.Tensor]:
    """Returns what the operations need from outside.

    What computes shapes and axes is not outside, as XLA must know these when it compiles.
    """
    left, inside, found = list(operations), set(operations), {}
    while left:
        for tensor in left.pop().inputs:
            if tensor.op in inside:
                continue
            if tensor.dtype in (tf.int32, tf.int64) and tensor.op.type != "Placeholder":
                inside.add(tensor.op)
                left.append(tensor.op)
            else:
                found[tensor.ref()] = tensor
    return list(found.values())
