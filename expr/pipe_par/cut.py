"""What cutting a step into F, B and W costs: the three, one after the other, against one function.

    python expr/pipe_par/cut.py [--models gpt resnet50] [--rounds 15]

One process, the second half of a model's layers, on one micro-batch. Both make the gradient of what
the first half has sent, and add the gradients of the weights to
accumulators. They take turns, and the ratio is the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from ooodist import config as job_file
from ooodist import engines
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.stages import Stage, calls_of, sent_specs, split
from ooodist.pipeline.work import StageWork, compiled_loss
from ooodist.training.preparation import load_and_build

FOLDER = Path(__file__).parent
MODELS = ("gpt", "resnet50")
MICROBATCHES = 4
WARM_UPS = 3


def whole(
    model: keras.Model, stage: Stage, splitter: BatchSplitter
) -> Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], list[tf.Tensor]]:
    """Forward and backward pass in one function, as TensorFlow is used without us."""
    weights = [variable.value for variable in stage.model.trainable_variables]
    accumulators = [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in weights]
    loss_of = compiled_loss(model, splitter.structure)

    @tf.function(autograph=False)
    def step(received: Sequence[tf.Tensor], targets: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(received)
            loss = loss_of(stage.run(received, training=True), targets) / MICROBATCHES
        of_inputs, of_weights = tape.gradient(loss, [list(received), weights])
        for accumulator, gradient in zip(accumulators, of_weights, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                accumulator.scatter_add(gradient)
            else:
                accumulator.assign_add(gradient)
        return of_inputs

    return step


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    """Both on the second half of a model's layers, which has an input gradient."""
    config = job_file.load(FOLDER / "jobs" / f"{name}.yaml")
    data, _, model = load_and_build(config, engines.current())
    batch = next(iter(data.train))
    model._symbolic_build(data_batch=batch)
    splitter = BatchSplitter(model, batch, MICROBATCHES)
    calls = len(calls_of(model))
    first, last = split(model, [range(calls // 2), range(calls // 2, calls)])
    inputs, targets = splitter.specs()
    [sent, _] = sent_specs(model, [first, last], inputs)
    work = StageWork(last, (), sent, targets, compiled_loss(model, splitter.structure), {})
    parts = splitter.split(batch, range(len(inputs)), targets=True)
    received = [first.run(list(those.values()), training=True) for those in parts.inputs]
    uncut = whole(model, last, splitter)
    rows: list[dict[str, Any]] = []
    for number in range(-WARM_UPS, rounds):
        seconds = {}
        for what in ("uncut", "cut") if number % 2 else ("cut", "uncut"):
            work.begin([[]] * MICROBATCHES, parts.targets)
            began = time.perf_counter()
            for microbatch in range(MICROBATCHES):
                if what == "cut":
                    work.forward(microbatch, received[microbatch])
                    work.input_gradient(microbatch, [])
                    work.weight_gradient(microbatch)
                else:
                    uncut(received[microbatch], parts.targets[microbatch])
            seconds[what] = (time.perf_counter() - began) / MICROBATCHES
        if number >= 0:
            rows.append({"model": name, "round": number, **seconds})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    engines.init("local")
    rows = [row for name in options.models for row in measure(name, options.rounds)]
    with (FOLDER / "cut.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print("| model | one function (ms) | F, B and W (ms) | ratio |\n|---|---|---|---|")
    for name in options.models:
        pairs = [(float(r["uncut"]), float(r["cut"])) for r in rows if r["model"] == name]
        uncut, cut = (statistics.median(those) for those in zip(*pairs, strict=True))
        ratio = statistics.median(second / first for first, second in pairs)
        print(f"| {name} | {uncut * 1e3:.1f} | {cut * 1e3:.1f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
