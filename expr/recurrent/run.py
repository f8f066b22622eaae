"""Weight gradients of recurrent layers, in the loop over time and after it: see README.md.

    python expr/recurrent/run.py [--turns 15] [--steps 4] [--rows lstm:32:100:256 ...]

A row is KIND:BATCH:TIME:UNITS, two layers of this kind on as many inputs as units. Both ways train
in one process and take turns.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from ooodist.graph.recurrent import put_recurrent_gradients_after_loop

KINDS = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU, "rnn": keras.layers.SimpleRNN}
ROWS = ("lstm:16:32:128", "lstm:32:100:256", "lstm:64:50:512", "gru:32:100:256", "rnn:32:100:256")
WAYS = ("in the loop", "after it")


@dataclass(frozen=True)
class Row:
    """A model to time."""

    kind: str
    batch: int
    time: int
    units: int

    def step(self, way: str) -> Callable[[], tf.Tensor]:
        """Returns a step of training, traced and run once; it returns the loss."""
        keras.utils.set_random_seed(1)
        layer = KINDS[self.kind]
        inputs = keras.Input((self.time, self.units))
        x = layer(self.units, return_sequences=True)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(10)(layer(self.units)(x)))
        if way == WAYS[1]:
            put_recurrent_gradients_after_loop(model)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
        chance = np.random.default_rng(1)
        data = tf.constant(chance.normal(size=(self.batch, self.time, self.units)), tf.float32)
        labels = tf.constant(chance.integers(0, 10, self.batch))
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function(autograph=False)
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(data, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        step()
        return step


def read_row(text: str) -> Row:
    """Reads KIND:BATCH:TIME:UNITS. Raises SystemExit."""
    kind, *numbers = text.split(":")
    if kind not in KINDS or len(numbers) != 3 or not all(each.isdigit() for each in numbers):
        raise SystemExit(f"--rows: {text!r} is not KIND:BATCH:TIME:UNITS; {', '.join(KINDS)}")
    return Row(kind, *map(int, numbers))


def measure(row: Row, turns: int, steps: int) -> list[dict[str, object]]:
    """Returns a line for each turn of each way, with seconds a step."""
    ways = {way: row.step(way) for way in WAYS}
    lines: list[dict[str, object]] = []
    for turn in range(turns):
        for way in WAYS[:: 1 if turn % 2 == 0 else -1]:
            began = time.perf_counter()
            for _ in range(steps):
                loss = ways[way]()
            loss.numpy()
            seconds = (time.perf_counter() - began) / steps
            lines.append({**vars(row), "way": way, "turn": turn, "seconds": f"{seconds:.6f}"})
    return lines


def table(lines: Sequence[dict[str, object]]) -> str:
    """Returns medians, and the median and quartiles of each turn's ratio."""
    text = ["| model | in the loop | after it | speed-up | quartiles |", "|---" * 5 + "|"]
    names = [
        f"{each['kind']}, {each['batch']} x {each['time']}, {each['units']} units" for each in lines
    ]
    for name in dict.fromkeys(names):
        own = [each for each, its_name in zip(lines, names, strict=True) if its_name == name]
        seconds = {
            way: [float(str(each["seconds"])) for each in own if each["way"] == way] for way in WAYS
        }
        ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        inside, after = (f"{1e3 * statistics.median(each):.1f} ms" for each in seconds.values())
        text.append(f"| {name} | {inside} | {after} | {middle:.2f}x | {low:.2f} to {high:.2f} |")
    return "\n".join(text)


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="KIND:BATCH:TIME:UNITS")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="in a turn")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("steps.csv"))
    options = parser.parse_args(arguments)
    lines = [
        line
        for text in options.rows
        for line in measure(read_row(text), options.turns, options.steps)
    ]
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    print(table(lines))


if __name__ == "__main__":
    main()
