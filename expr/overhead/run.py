"""What ooodist costs when it has nothing to do: one worker, no order, against plain Keras fit.

Both train the same ResNet-50 (96 x 96 images, batch 8, random data) in one process, in alternating
blocks of steps, so that a change of the machine's speed meets both.

    python expr/overhead/run.py [--blocks 12] [--steps 8] [--output expr/overhead/steps.csv]
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import ooodist

IMAGE = (96, 96, 3)
BATCH = 8


class StepTimes(keras.callbacks.Callback):
    """Seconds of each step of a fit but the first, which starts the input pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_begin(self, logs: object = None) -> None:
        self._last: float | None = None

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        now = time.perf_counter()
        if self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now


def resnet50() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.applications.ResNet50(
        weights=None, input_shape=IMAGE, classes=10, classifier_activation=None
    )
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12, help="blocks of steps each")
    parser.add_argument("--steps", type=int, default=8, help="timed steps a block")
    parser.add_argument("--output", type=Path, help="CSV file of all step times")
    options = parser.parse_args()

    ooodist.init("local")
    models = {"plain Keras": resnet50(), "ooodist": ooodist.distribute(resnet50())}
    numbers = np.random.default_rng(0)
    count = BATCH * (options.steps + 1)
    x = numbers.normal(size=(count, *IMAGE)).astype(np.float32)
    y = numbers.integers(0, 10, count)

    times: dict[str, StepTimes] = {name: StepTimes() for name in models}
    for block in range(-1, options.blocks):
        # Take turns in who is first; block -1 traces and is not counted.
        for name in sorted(models, reverse=bool(block % 2)):
            callbacks = [times[name]] if block >= 0 else []
            models[name].fit(x, y, batch_size=BATCH, verbose=0, callbacks=callbacks)

    print(
        f"ResNet-50, {IMAGE[0]} x {IMAGE[1]}, batch {BATCH}; {os.cpu_count()} cores "
        f"({platform.machine()}), TensorFlow {tf.__version__}, Keras {keras.__version__}"
    )
    medians = {}
    for name, record in times.items():
        medians[name] = statistics.median(record.seconds)
        low, _, high = statistics.quantiles(record.seconds, n=4)
        print(
            f"{name:12} median {medians[name] * 1e3:7.1f} ms a step "
            f"(quartiles {low * 1e3:.1f} to {high * 1e3:.1f}, {len(record.seconds)} steps)"
        )
    print(f"ooodist / plain Keras: {medians['ooodist'] / medians['plain Keras']:.4f}")
    if options.output:
        with options.output.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["which", "seconds"])
            writer.writerows([name, f"{s:.6f}"] for name in times for s in times[name].seconds)


if __name__ == "__main__":
    main()
