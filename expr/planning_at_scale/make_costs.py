"""Writes the cost files of this folder: what each unit of a step takes on an NVIDIA V100.

Traces one training step of each model with mixed precision, as it is (nothing is computed), counts
the work of each unit (roofline.py), and scales it so that the step takes as long as was published.

    python expr/planning_at_scale/make_costs.py
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import yaml
from roofline import Gpu, flops

from ooodist.graph.forward_units import find_forward_units
from ooodist.graph.units import Unit, find_backward_units
from ooodist.models import MODELS, build
from ooodist.planner.costs import StepCosts, UnitCost, WeightCost
from ooodist.step.backward import variable_names
from ooodist.util import strict_yaml, yaml_dataclass

COSTS = Path(__file__).parent / "costs"

# Source: https://www.nvidia.com/en-us/data-center/v100/ (V100 SXM2).
V100 = Gpu("V100 SXM2", float16_flops=125e12, float32_flops=15.7e12, bytes_per_second=900e9)


@dataclass(frozen=True)
class Data:
    """What a model must know of its data (:class:`ooodist.models.DataDescription`)."""

    input_spec: tf.TensorSpec
    task: str
    num_classes: int
    num_tokens: int | None = None


@dataclass(frozen=True)
class Published:
    """A training speed of one V100 with mixed precision.

    Attributes:
        model: name in ooodist.models.
        batch: samples a step.
        samples_per_second: of the whole step, or of its units alone if ``update_apart``.
        update_apart: gradients were accumulated over so many steps that the update does not show.
        update_bytes: memory traffic of the optimizer for each parameter.
        optimizer: that moves so many bytes.
        source: where the speed was published.
    """

    model: str
    data: Data
    batch: int
    samples_per_second: float
    update_apart: bool
    update_bytes: int
    optimizer: str
    source: str


IMAGES = Data(tf.TensorSpec((224, 224, 3), tf.float32), "classification", 1000)
SENTENCES = Data(tf.TensorSpec((128,), tf.int32), "language", 30522)
MOMENTUM = 5 * 4  # reads gradient, slot and weight, writes slot and weight, float32
LAMB = 12 * 4  # the same with two slots; the update is written, read for its norm, and applied

PUBLISHED = (
    Published(
        model="resnet50",
        data=IMAGES,
        batch=256,
        samples_per_second=1270,
        update_apart=False,
        update_bytes=MOMENTUM,
        optimizer="SGD with momentum",
        source="https://github.com/NVIDIA/DeepLearningExamples/blob/master/TensorFlow/"
        "Classification/ConvNets/resnet50v1.5/README.md (DGX-1, 1 GPU, mixed precision + XLA)",
    ),
    Published(
        model="vgg16",
        data=IMAGES,
        batch=384,
        samples_per_second=456,
        update_apart=False,
        update_bytes=MOMENTUM,
        optimizer="SGD with momentum",
        source="https://github.com/lambdal/lambda-tensorflow-benchmark (V100 32GB, 1 GPU: "
        "tf-train-throughput-fp16.csv, tf-train-bs-fp16.csv)",
    ),
    Published(
        model="bert_24",
        data=SENTENCES,
        batch=64,
        samples_per_second=168.63,
        update_apart=True,
        update_bytes=LAMB,
        optimizer="LAMB",
        source="https://github.com/NVIDIA/DeepLearningExamples/blob/master/TensorFlow/"
        "LanguageModeling/BERT/README.md (DGX-1 32GB, 1 GPU, sequence length 128, "
        "mixed precision)",
    ),
)


@dataclass(frozen=True)
class Step:
    """A traced step: its units, and the shape of each trained weight."""

    forward: tuple[Unit, ...]
    backward: tuple[Unit, ...]
    weights: dict[str, tuple[int, ...]]


def trace(name: str, data: Data, batch: int) -> Step:
    """The units of one mixed-precision training step; nothing is computed."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = build(MODELS[name].config(), data)
    finally:
        keras.config.set_dtype_policy(policy)
    variables = model.trainable_variables
    names = variable_names(variables)
    found: list[Step] = []

    def step(x: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        seed = tf.ones_like(loss)
        gradients = tape.gradient(loss, variables, output_gradients=seed)
        graph = tf.compat.v1.get_default_graph()
        handles = [graph.capture(variable.handle) for variable in variables]
        shapes = {n: tuple(v.shape) for n, v in zip(names, variables, strict=True)}
        forward = find_forward_units(loss, handles, names)
        found.append(Step(forward, find_backward_units([seed], gradients, names), shapes))

    spec = tf.TensorSpec((batch, *data.input_spec.shape), data.input_spec.dtype)
    labels = tf.TensorSpec((batch, *model.output_shape[1:-1]), tf.int32)
    tf.function(step, autograph=False).get_concrete_function(spec, labels)
    return found[0]


def step_costs(published: Published, step: Step, gpu: Gpu) -> tuple[StepCosts, float]:
    """Costs that add up to the published step, and the efficiency that this takes."""
    seconds = gpu.seconds(step.forward) | gpu.seconds(step.backward)
    update_bytes = {
        name: tf.TensorShape(shape).num_elements() * published.update_bytes
        for name, shape in step.weights.items()
    }
    at_peak = sum(seconds.values())
    if not published.update_apart:
        at_peak += sum(update_bytes.values()) / gpu.bytes_per_second
    efficiency = at_peak * published.samples_per_second / published.batch

    def cost(unit: Unit) -> UnitCost:
        return UnitCost(
            name=unit.name,
            kind=unit.kind,
            seconds=_rounded(seconds[unit.name] / efficiency),
            needs=tuple(sorted(unit.needs)),
            weights=unit.variables,
        )

    weights = [
        WeightCost(
            name=name,
            num_bytes=tf.TensorShape(shape).num_elements() * tf.float32.size,
            update_seconds=_rounded(update_bytes[name] / gpu.bytes_per_second / efficiency),
        )
        for name, shape in step.weights.items()
    ]
    costs = StepCosts(
        forward=tuple(map(cost, step.forward)),
        backward=tuple(map(cost, step.backward)),
        weights=tuple(weights),
    )
    return costs, efficiency


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def as_yaml(costs: StepCosts, comment: str) -> str:
    """Compact YAML, one unit a line; what has its default value is left out."""

    def short(item: UnitCost | WeightCost) -> dict[str, Any]:
        plain = yaml_dataclass.plain(item)
        return {key: value for key, value in plain.items() if value not in ([], "float32")}

    lines = [f"# {line}" for line in comment.splitlines()]
    for field, items in (
        ("forward", costs.forward),
        ("backward", costs.backward),
        ("weights", costs.weights),
    ):
        lines.append(f"{field}:")
        lines += [f"- {_flow(short(item))}" for item in items]
    return "\n".join(lines) + "\n"


def _flow(item: dict[str, Any]) -> str:
    return yaml.safe_dump(item, default_flow_style=True, sort_keys=False, width=10_000).strip()


def main() -> None:
    logging.disable(logging.WARNING)  # BERT's, about labels that there are none of here
    for published in PUBLISHED:
        step = trace(published.model, published.data, published.batch)
        costs, efficiency = step_costs(published, step, V100)
        arithmetic = sum(flops(op) for unit in (*step.forward, *step.backward) for op in unit.ops)
        comment = (
            f"{published.model}, batch {published.batch}, mixed precision, "
            f"{published.optimizer}, on a {V100.name}.\n"
            f"Made by make_costs.py: roofline of {V100.float16_flops / 1e12:g} TFLOP/s and "
            f"{V100.bytes_per_second / 1e9:g} GB/s at {efficiency:.1%} efficiency, which gives "
            f"the\n{published.samples_per_second:g} samples/s of {published.source}."
        )
        text = as_yaml(costs, comment)
        read = yaml_dataclass.read(StepCosts, strict_yaml.parse(text, published.model))
        assert read == costs, published.model
        file = COSTS / f"{published.model}.yaml"
        file.write_text(text, encoding="utf-8")
        of_kind = {
            kind: sum(u.seconds for u in (*costs.forward, *costs.backward) if u.kind == kind)
            for kind in ("F", "dX", "dW")
        }
        print(
            f"{file.name}: {len(costs.forward) + len(costs.backward)} units, "
            f"{arithmetic / 1e12:.2f} TFLOP, efficiency {efficiency:.1%}, "
            f"step {costs.compute_seconds * 1e3:.1f} ms ("
            + ", ".join(f"{kind} {value * 1e3:.1f}" for kind, value in of_kind.items())
            + f"), {sum(w.num_bytes for w in costs.weights) / 1e6:.1f} MB of gradients, "
            f"file {file.stat().st_size / 1e3:.0f} kB"
        )


if __name__ == "__main__":
    main()
