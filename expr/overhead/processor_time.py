"""The processor time of a step: Keras, Keras again, and ooodist, in turns, in one process.

Wall times of steps differ by 10 % on a busy machine; processor times, compared pair by pair, by
1 to 2 %. "Keras again" says how much of a difference is noise.

    python expr/overhead/processor_time.py [--models mlp lstm resnet20] [--blocks 24] [--steps 20]
"""

from __future__ import annotations

import argparse
import statistics
import time

import keras
from run import SUBJECTS, Subject, compiled

import ooodist

KERAS, AGAIN, OOODIST = "Keras", "Keras again", "ooodist"


class Times(keras.callbacks.Callback):
    """Wall and processor seconds from the end of the first step of a fit to that of the last."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        now = time.perf_counter(), time.process_time()
        if batch == 0:
            self.began = now
        self.seconds = [end - start for start, end in zip(self.began, now, strict=True)]


def measure(subject: Subject, blocks: int, steps: int) -> list[str]:
    """Lines of the README's table."""
    models = {name: compiled(subject, jit_compile=False) for name in (KERAS, AGAIN, OOODIST)}
    ooodist.distribute(models[OOODIST])
    x, y = subject.samples(subject.batch * (steps + 1))
    times: dict[str, list[list[float]]] = {name: [] for name in models}
    names = list(models)
    for block in range(-1, blocks):  # block -1 traces
        first = block % len(names)
        for name in names[first:] + names[:first]:
            record = Times()
            models[name].fit(x, y, batch_size=subject.batch, verbose=0, callbacks=[record])
            if block >= 0:
                times[name].append(record.seconds)
    lines = []
    for name, own in times.items():
        wall, processor = (
            statistics.median(a[at] / b[at] for a, b in zip(own, times[KERAS], strict=True))
            for at in (0, 1)
        )
        milliseconds = statistics.median(each[1] for each in own) / steps * 1e3
        lines.append(
            f"| {subject.title} | {name} | {milliseconds:.2f} ms | {processor:.3f} | {wall:.3f} |"
        )
    return lines


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="+", choices=SUBJECTS, default=["mlp", "lstm", "resnet20"]
    )
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    ooodist.init("local")
    for name in options.models:
        print("\n".join(measure(SUBJECTS[name], options.blocks, options.steps)), flush=True)


if __name__ == "__main__":
    main()
