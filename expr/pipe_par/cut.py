"""What cutting a step into F, I and W costs: the three, one after the other, against one function.

    python expr/pipe_par/cut.py [--models gpt resnet50] [--rounds 25]

One process on one core, as a rank in real.py, and the first and the second half of a model's
layers, on one micro-batch each. Both ways make the gradient of what a half has received (the first
one has received nothing, and its W is the whole backward pass), and add the gradients of the
weights to accumulators. They take turns, and the ratio is the median of the ratios of neighbors.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from ooodist import engines
from ooodist.compat.keras_model import build_with
from ooodist.config import job as job_file
from ooodist.job.building import load_and_build
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.runtime.work import Loss, StageWork, compiled_loss
from ooodist.pipeline.stages import calls_of, sent_specs, split

FOLDER = Path(__file__).parent
MODELS = ("gpt", "resnet50")
MICROBATCHES = 4
WARM_UPS = 3


class Half:
    """A half of a model, in one function and in three.

    Args:
        work: the three.
        loss: of the second half; None for the first, which is given gradients of its outputs.
    """

    def __init__(self, work: StageWork, loss: Loss | None) -> None:
        self._work, self._loss = work, loss
        self._weights = [variable.value for variable in work.variables]
        self._sums = [tf.Variable(tf.zeros_like(w), trainable=False) for w in self._weights]
        self._whole = tf.function(self._step, autograph=False)

    def _step(
        self,
        received: Sequence[tf.Tensor],
        targets: Sequence[tf.Tensor],
        seeds: Sequence[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Forward and backward pass in one function, as TensorFlow is used without us."""
        watched = list(received) if self._loss is not None else []
        with tf.GradientTape() as tape:
            tape.watch(watched)
            outputs = self._work.stage.run(received, training=True)
            ends: Any = outputs
            if self._loss is not None:
                ends, seeds = self._loss(outputs, targets) / MICROBATCHES, None
        found = tape.gradient(ends, [*watched, *self._weights], output_gradients=seeds)
        for total, gradient in zip(self._sums, found[len(watched) :], strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                total.scatter_add(gradient)
            else:
                total.assign_add(gradient)
        return outputs, found[: len(watched)]

    def seconds(
        self,
        cut: bool,
        received: Sequence[Sequence[tf.Tensor]],
        targets: Sequence[Sequence[tf.Tensor]],
        seeds: Sequence[Sequence[tf.Tensor]],
    ) -> float:
        """Of a micro-batch, the mean over those of a step."""
        work = self._work
        data = received if self._loss is None else [[]] * MICROBATCHES
        work.begin(data, targets if self._loss is not None else ())
        began = time.perf_counter()
        for number in range(MICROBATCHES):
            if cut:
                work.forward(number, [] if self._loss is None else received[number])
                work.input_gradient(number, seeds[number] if self._loss is None else [])
                work.weight_gradient(number)
            else:
                self._whole(received[number], targets[number], seeds[number])
        return (time.perf_counter() - began) / MICROBATCHES


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    """Both halves of a model, both ways."""
    config = job_file.load(FOLDER / "jobs" / f"{name}.yaml")
    data, _, model = load_and_build(config, engines.current())
    batch = next(iter(data.train))
    build_with(model, batch)
    splitter = BatchSplitter(model, batch, MICROBATCHES)
    calls = len(calls_of(model))
    first, last = split(model, [range(calls // 2), range(calls // 2, calls)])
    inputs, targets = splitter.specs()
    [sent, _] = sent_specs(model, [first, last], inputs)
    loss = compiled_loss(model, splitter.structure)
    parts = splitter.split(batch, range(len(inputs)), targets=True)
    given = [list(those.values()) for those in parts.inputs]
    received = [first.run(those, training=True) for those in given]
    gradients = [[tf.ones_like(tensor) for tensor in those] for those in received]
    halves = {
        "first": (Half(StageWork(first, inputs, (), (), None, {}), None), given),
        "second": (Half(StageWork(last, (), sent, targets, loss, {}), loss), received),
    }
    rows: list[dict[str, Any]] = []
    for number in range(-WARM_UPS, rounds):
        for half, (work, tensors) in halves.items():
            seconds = {
                what: work.seconds(what == "cut", tensors, parts.targets, gradients)
                for what in (("uncut", "cut") if number % 2 else ("cut", "uncut"))
            }
            if number >= 0:
                rows.append({"model": name, "half": half, "round": number, **seconds})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before TensorFlow starts its threads
    engines.init("local")
    rows = [row for name in options.models for row in measure(name, options.rounds)]
    with (FOLDER / "cut.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print("| model | half | one function (ms) | F, I and W (ms) | ratio |\n|---|---|---|---|---|")
    for name, half in itertools.product(options.models, ("first", "second")):
        pairs = [
            (float(row["uncut"]), float(row["cut"]))
            for row in rows
            if (row["model"], row["half"]) == (name, half)
        ]
        uncut, cut = (statistics.median(those) for those in zip(*pairs, strict=True))
        ratio = statistics.median(second / first for first, second in pairs)
        print(f"| {name} | {half} | {uncut * 1e3:.1f} | {cut * 1e3:.1f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
