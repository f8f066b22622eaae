"""What ooodist costs when it has nothing to do, and what XLA brings.

Keras's fit and ooodist's, each with XLA and without it, train the same model on the same random
data in one process, in alternating blocks of steps, so that a change of the machine's speed affects
all alike. On several workers only ooodist's train.

    python expr/overhead/run.py [--models NAME ...] [--blocks 12] [--steps 8] [--output FILE.csv]
    ooodist-launch -np 2 expr/overhead/run.py --models mlp

Rows of a file that is there already stay, but for those of the models that are measured.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import ooodist
from ooodist.models import build
from ooodist.models.resnet20 import ResNet20Config
from ooodist.models.transformers.bert import Bert12Config
from ooodist.models.transformers.gpt import GptConfig
from ooodist.models.transformers.vit import VitConfig

CLASSES = 10
VOCABULARY = 1000
XLA, PLAIN, OOODIST, OOODIST_XLA = "Keras with XLA", "Keras", "ooodist", "ooodist with XLA"


@dataclass(frozen=True)
class Described:
    """Data, as ooodist.models.build is told of it."""

    input_spec: tf.TensorSpec
    task: str = "classification"
    num_classes: int | None = CLASSES
    num_tokens: int | None = None


@dataclass(frozen=True)
class Subject:
    """A model to train: a name for people, its batch, the shape of a sample, what makes it."""

    title: str
    batch: int
    sample: tuple[int, ...]
    make: Callable[[], keras.Model]

    def samples(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """At random: images or tokens, and their classes or, of a GPT, the next tokens."""
        numbers = np.random.default_rng(0)
        if self.sample == SENTENCE:
            x = numbers.integers(0, VOCABULARY, (count, *self.sample), dtype=np.int32)
            if self.title.startswith("GPT"):
                return x, np.roll(x, -1, 1)
        else:
            x = numbers.normal(size=(count, *self.sample)).astype(np.float32)
        return x, numbers.integers(0, CLASSES, count)


def application(make: Callable[..., keras.Model], sample: tuple[int, ...]) -> keras.Model:
    """One of keras.applications, with logits."""
    return make(weights=None, input_shape=sample, classes=CLASSES, classifier_activation=None)


def mlp(width: int = 512) -> keras.Model:
    hidden = [keras.layers.Dense(width, "relu") for _ in range(4)]
    return keras.Sequential([keras.Input((256,)), *hidden, keras.layers.Dense(CLASSES)])


def lstm() -> keras.Model:
    recurrent = keras.layers.LSTM(128)
    return keras.Sequential([keras.Input((64, 32)), recurrent, keras.layers.Dense(CLASSES)])


IMAGE, SMALL_IMAGE, SENTENCE = (96, 96, 3), (8, 8, 1), (128,)
SUBJECTS = {
    "resnet50": Subject(
        "ResNet-50", 8, IMAGE, lambda: application(keras.applications.ResNet50, IMAGE)
    ),
    "mobilenet_v3_small": Subject(
        "MobileNetV3-small",
        16,
        IMAGE,
        lambda: application(keras.applications.MobileNetV3Small, IMAGE),
    ),
    "bert_4": Subject(
        "BERT of 4 layers",
        8,
        SENTENCE,
        lambda: build(
            Bert12Config(layers=4, width=256, heads=4, vocabulary_size=VOCABULARY),
            Described(tf.TensorSpec(SENTENCE, tf.int32)),
        ),
    ),
    "resnet20": Subject(
        "ResNet-20",
        32,
        SMALL_IMAGE,
        lambda: build(ResNet20Config(), Described(tf.TensorSpec(SMALL_IMAGE))),
    ),
    "gpt_4": Subject(
        "GPT of 4 layers",
        8,
        SENTENCE,
        lambda: build(
            GptConfig(layers=4, width=256, heads=4, vocabulary_size=VOCABULARY),
            Described(tf.TensorSpec(SENTENCE, tf.int32), "language", VOCABULARY),
        ),
    ),
    "vit_4": Subject(
        "ViT of 4 layers",
        16,
        (32, 32, 3),
        lambda: build(
            VitConfig(layers=4, width=128, heads=4, patch=4),
            Described(tf.TensorSpec((32, 32, 3))),
        ),
    ),
    "lstm": Subject("LSTM", 16, (64, 32), lstm),
    "mlp": Subject("MLP", 64, (256,), mlp),
}


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


def compiled(subject: Subject, jit_compile: bool) -> keras.Model:
    """The model, the same each time, ready to be trained."""
    keras.utils.set_random_seed(0)
    model = subject.make()
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    return model


def measure(subject: Subject, blocks: int, steps: int) -> dict[str, list[float]]:
    """Seconds of each step, by who trained."""
    plain = {
        XLA: compiled(subject, jit_compile=True),
        PLAIN: compiled(subject, jit_compile=False),
    }
    models = {
        **(plain if ooodist.size() == 1 else {}),
        OOODIST: ooodist.distribute(compiled(subject, jit_compile=False)),
        OOODIST_XLA: ooodist.distribute(compiled(subject, jit_compile=True)),
    }
    x, y = subject.samples(subject.batch * (steps + 1) * ooodist.size())
    times = {name: StepTimes() for name in models}
    names = list(models)
    for block in range(-1, blocks):
        # Each is first and last as often; block -1 traces and compiles, and is not counted.
        first = block % len(names)
        for name in names[first:] + names[:first]:
            callbacks = [times[name]] if block >= 0 else []
            models[name].fit(x, y, batch_size=subject.batch, verbose=0, callbacks=callbacks)
    return {name: record.seconds for name, record in times.items()}


def rows(subject: Subject, times: dict[str, list[float]]) -> str:
    """Lines of the README's table."""
    plain = statistics.median(times.get(PLAIN, times[OOODIST]))
    lines = []
    for name, seconds in times.items():
        median = statistics.median(seconds)
        low, _, high = statistics.quantiles(seconds, n=4)
        lines.append(
            f"| {subject.title} | {name} | {median * 1e3:.1f} ms | {low * 1e3:.1f} to "
            f"{high * 1e3:.1f} ms | {median / plain:.3f} |"
        )
    return "\n".join(lines)


def write(file: Path, measured: dict[str, dict[str, list[float]]]) -> None:
    """Puts these models' rows into a CSV file, in the place of their rows of a run before."""
    kept: list[list[str]] = []
    if file.exists():
        with file.open(newline="", encoding="utf-8") as stream:
            kept = [row for row in list(csv.reader(stream))[1:] if row[0] not in measured]
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["model", "which", "seconds"])
        writer.writerows(kept)
        for model, times in measured.items():
            for name, seconds in times.items():
                writer.writerows([model, name, f"{each:.6f}"] for each in seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--blocks", type=int, default=12, help="blocks of steps each")
    parser.add_argument("--steps", type=int, default=8, help="timed steps a block")
    parser.add_argument("--output", type=Path, help="CSV file of all step times")
    options = parser.parse_args()

    ooodist.init()
    say = print if ooodist.rank() == 0 else lambda *_, **__: None
    say(
        f"{ooodist.size()} workers, {os.cpu_count()} cores ({platform.machine()}), "
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}\n"
        "| model | | median | quartiles | ratio |\n|---|---|---|---|---|",
        flush=True,
    )
    for name in options.models:
        times = measure(SUBJECTS[name], options.blocks, options.steps)
        say(rows(SUBJECTS[name], times), flush=True)
        if options.output and not ooodist.rank():
            write(options.output, {name: times})


if __name__ == "__main__":
    main()
