"""Trains one model in one of the ways of WAYS, and answers how long a step takes.

run.py starts one for each row. When the step is compiled and warm, it prints the losses so far;
then, for each line ``N`` that it reads, it carries out at least N steps and prints the seconds of
one, and how long the cores were busy in it, all added up.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # XLA's flags must be known before TensorFlow is imported
    import tensorflow as tf

    from ooodist.graph.subgraphs import Subgraphs
    from ooodist.graph.units import Unit

WARM_UP = 12  # steps: cuDNN and XLA's command buffers settle in the first ones


@dataclass(frozen=True)
class Way:
    """How a step is carried out.

    Attributes:
        xla: the step is compiled by XLA, as Keras does by default.
        flags: XLA's.
        lanes: logical devices that the device is divided into; dW runs on the last.
        order: gives the order of the backward units, of which two may run at a time; None: any.
        steps: in a call of the traced function.
        streams: XLA runs the matrix products and convolutions of dW on a second stream.
        spins: threads of the CPU that find nothing to do spin before they sleep.
    """

    xla: bool = False
    flags: str = ""
    lanes: int = 1
    order: Callable[[Sequence[Unit]], list[str]] | None = None
    steps: int = 1
    streams: bool = False
    spins: bool = True


def inorder(units: Sequence[Unit]) -> list[str]:
    """From the loss down, so that the dW of a layer is computed beside its dX."""
    return [unit.name for unit in units]


def late(units: Sequence[Unit]) -> list[str]:
    """All dX first; dW, from the first layer up, may still run beside the next forward pass."""
    # A part of a weight's dW that completes nothing stays where it is: others need it.
    put_off = [unit for unit in units if unit.kind == "dW" and unit.variables]
    return [u.name for u in [*(u for u in units if u not in put_off), *reversed(put_off)]]


# XLA can record the kernels of a step as CUDA graphs ("command buffers") and launch them at once;
# if they are CONCURRENT, kernels that do not need each other, such as dX and dW, run side by side.
GRAPHS = (
    "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL "
    "--xla_gpu_graph_min_graph_size=1"
)
# The latency-hiding scheduler starts what has a stream of its own early and waits for it late. A
# command buffer would put it back in line (openxla/xla, pull request 48900).
STREAMS = (
    "--xla_gpu_experimental_stream_annotation=true "
    "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_command_buffer="
)
WAYS = {
    "graph": Way(),
    "graph_no_spin": Way(spins=False),
    "graph_4": Way(steps=4),
    "two_lanes": Way(order=inorder),
    "two_lanes_4": Way(order=inorder, steps=4),
    "two_lanes_late_4": Way(order=late, steps=4),
    "two_streams": Way(lanes=2),
    "xla": Way(xla=True),
    "xla_graphs": Way(xla=True, flags=GRAPHS),
    "xla_concurrent": Way(
        xla=True, flags=f"{GRAPHS} --xla_gpu_command_buffer_scheduling_mode=CONCURRENT"
    ),
    "xla_streams": Way(xla=True, streams=True, flags=STREAMS),
}
HEAVY = ("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "MatMul", "BatchMatMulV2")


@dataclass(frozen=True)
class Subject:
    """A model: its name in ooodist.models, its settings and the shape of a sample."""

    name: str
    sample: tuple[int, ...]
    settings: dict[str, object] = field(default_factory=dict)


SMALL, LARGE, SENTENCE = (32, 32, 3), (224, 224, 3), (128,)
CLASSES, VOCABULARY = 100, 1000
SUBJECTS = {
    "mlp": Subject("mlp", (64,)),
    "densenet_12": Subject("densenet", SMALL, {"growth_rate": 12}),
    "densenet_24": Subject("densenet", SMALL, {"growth_rate": 24}),
    "densenet_32": Subject("densenet", SMALL, {"growth_rate": 32}),
    "mobilenet_v3_0.5": Subject("mobilenet_v3_large", LARGE, {"alpha": 0.5, "dropout": 0.0}),
    "mobilenet_v3_1.0": Subject("mobilenet_v3_large", LARGE, {"alpha": 1.0, "dropout": 0.0}),
    "resnet50": Subject("resnet50", LARGE),
    "resnet101": Subject("resnet101", LARGE),
    "resnet152": Subject("resnet152", LARGE),
    "vgg16": Subject("vgg16", LARGE),
    "lstm": Subject("lstm", SENTENCE, {"vocabulary_size": VOCABULARY}),
    "bert_12": Subject(
        "bert_12",
        SENTENCE,
        {"vocabulary_size": VOCABULARY, "dropout": 0.0, "attention_dropout": 0.0},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("batch", type=int)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--deterministic", action="store_true", help="of each op, one algorithm")
    options = parser.parse_args()
    way = WAYS[options.way]
    # XLA reads them when TensorFlow is imported; those of the environment say where CUDA is.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {way.flags}".strip()
    run = prepare(SUBJECTS[options.subject], options.batch, way, options.deterministic)
    losses = [loss for _ in range(WARM_UP // way.steps) for loss in run()]
    print(json.dumps({"ready": options.way, "losses": losses}), flush=True)
    for line in sys.stdin:
        print(json.dumps(timed(run, calls=math.ceil(int(line) / way.steps), way=way)), flush=True)


def timed(run: Callable[..., list[float]], calls: int, way: Way) -> dict[str, float]:
    """Returns the seconds of a step, and those of all cores together (that wait, or compute)."""
    began, busy = time.perf_counter(), time.process_time()
    run(calls)
    steps = calls * way.steps
    return {
        "seconds": (time.perf_counter() - began) / steps,
        "core_seconds": (time.process_time() - busy) / steps,
    }


def prepare(
    subject: Subject, batch: int, way: Way, deterministic: bool
) -> Callable[..., list[float]]:
    """Builds the model and its step.

    Returns what carries out so many calls (by default 1), and returns the losses of the last one.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    from ooodist.compat.tensorflow_runtime import stop_spinning
    from ooodist.graph.order import impose_order
    from ooodist.graph.subgraphs import Subgraphs
    from ooodist.graph.units import find_backward_units
    from ooodist.models import build, config_class
    from ooodist.step.backward import variable_names

    if not way.spins and not stop_spinning():
        sys.exit("TensorFlow has started already: its threads spin")
    keras.utils.set_random_seed(0)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    lanes = divide_device(way.lanes)

    is_text = len(subject.sample) == 1 and subject.name != "mlp"
    numbers = np.random.default_rng(0)
    shape = (batch, *subject.sample)
    if is_text:
        x = tf.constant(numbers.integers(0, VOCABULARY, shape), tf.int32)
    else:
        x = tf.constant(numbers.normal(size=shape), tf.float32)
    y = tf.constant(numbers.integers(0, CLASSES, batch))
    data = Described(tf.TensorSpec(subject.sample, x.dtype))
    model = build(config_class(subject.name)(**subject.settings), data)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(jit_compile=way.xla, autograph=False)
    def call(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        return [step(x, y) for _ in range(way.steps)]

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        weights = [variable.value for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        seed = tf.ones_like(loss)
        gradients = tape.gradient(loss, weights, output_gradients=seed)
        names = variable_names(model.trainable_variables)
        units = find_backward_units([seed], gradients, names)
        if way.order is not None:
            impose_order(units, way.order(units), at_a_time=2)
        subgraphs = Subgraphs(loss.graph) if way.streams else None
        for unit in (unit for unit in units if unit.kind == "dW"):
            if len(lanes) > 1:
                put_on(lanes[-1], unit)
            if subgraphs is not None:
                gradients = streamed(subgraphs, unit, gradients)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def run(calls: int = 1) -> list[float]:
        # The calls follow each other without a wait, as in fit; then the device is waited for.
        for _ in range(calls):
            losses = call(x, y)
        return [float(loss) for loss in losses]

    return run


def put_on(device: str, unit: Unit) -> None:
    import tensorflow as tf

    for op in unit.ops:
        if not any(tensor.dtype == tf.resource for tensor in op.inputs):
            op._set_device(device)  # noqa: SLF001


def streamed(subgraphs: Subgraphs, unit: Unit, gradients: list[Any]) -> list[Any]:
    """Puts a unit with a heavy operation on XLA's second stream; returns all gradients then."""
    from streams import on_second_stream

    if not any(op.type in HEAVY for op in unit.ops):
        return gradients
    mine = [i for i, each in enumerate(gradients) if getattr(each, "op", None) in unit.ops]
    results = on_second_stream(subgraphs, unit.ops, [gradients[i] for i in mine])
    moved = dict(zip(mine, results, strict=True))
    return [moved.get(i, gradient) for i, gradient in enumerate(gradients)]


@dataclass(frozen=True)
class Described:
    """Data, as ooodist.models.build is told of it."""

    input_spec: object
    task: str = "classification"
    num_classes: int | None = CLASSES
    num_tokens: int | None = None


def divide_device(lanes: int) -> list[str]:
    """Divides the GPU (the CPU, if there is none) into logical devices; returns their names."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        if lanes == 1:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:
            each = tf.config.LogicalDeviceConfiguration(memory_limit=12 * 1024)  # MiB
            tf.config.set_logical_device_configuration(gpu, [each] * lanes)
    if not gpus and lanes > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        each = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [each] * lanes)
    kind = "GPU" if gpus else "CPU"
    return [device.name for device in tf.config.list_logical_devices(kind)]


if __name__ == "__main__":
    main()
