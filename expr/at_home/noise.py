"""How well can a trial tell plans apart, where the machine's speed changes all the time?

    python expr/at_home/noise.py                   # two minutes: records calls, then replays trials
    python expr/at_home/noise.py --calls FILE      # of calls recorded before (--keep FILE)

Records how long each call of a training on two workers takes, all with the same plan. Then replays
trials (ooodist/trainer/trial.py) from these: a call of a made-up plan that is 3 % slower takes 1.03
times as long as the recorded call in whose place it runs. So it is known which plan is the fastest,
and what a trial should measure.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from ooodist.engines.local import LocalEngine
from ooodist.trainer import trial
from ooodist.trainer.trial import Candidate, Trial

ROOT = Path(__file__).resolve().parents[2]
# What the candidates beside the default take, as multiples of it.
CASES = ((1.0,), (0.97,), (0.95,), (0.9,), (1.03,), (1.05,), (1.03, 1.03, 1.03), (0.95, 1.0, 1.05))
TRIALS = 400
FIRST_CALLS = 200  # are left out: the first are traced, and libraries tune themselves


class Replayed(NamedTuple):
    """What a trial came to: the winner's multiple, and those that it measured."""

    stays: float
    measured: list[float]
    calls: int


def record(file: Path, epochs: int) -> None:
    """Trains an MLP on this rank, and writes the seconds of each call on rank 0."""
    import keras

    import ooodist

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        ooodist_reads_no_weights = True

        def __init__(self) -> None:
            super().__init__()
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())

    ooodist.init()
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(512, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    ooodist.distribute(model)
    generator = np.random.default_rng(1)
    x, y = generator.random((3200, 64), np.float32), generator.integers(0, 10, 3200)
    clock = Clock()
    model.fit(x, y, batch_size=32, epochs=epochs, verbose=0, callbacks=[clock])
    if ooodist.rank() == 0:
        np.save(file, np.diff(clock.ends)[FIRST_CALLS:])


def replay(calls: np.ndarray, factors: Sequence[float], begin: int) -> Replayed:
    """A trial of the default and of plans that take these multiples of it."""
    now, at = 0.0, begin

    def clock() -> float:
        return now

    def candidate(name: str, factor: float) -> Candidate:
        def run(_batches: Sequence[Any]) -> dict[str, Any]:
            nonlocal now, at
            now += float(calls[at % len(calls)]) * factor
            at += 1
            return {}

        return Candidate(name, run)

    multiples = [1.0, *factors]
    tried = Trial(LocalEngine(), [candidate(str(i), each) for i, each in enumerate(multiples)])
    with mock.patch.object(trial.time, "perf_counter", clock):
        while tried.fastest is None:
            tried([None])  # type: ignore[list-item]
    measured = [seconds / tried.seconds[0] for seconds in tried.seconds[1:]]
    return Replayed(multiples[int(tried.fastest.name)], measured, at - begin)


def row(calls: np.ndarray, factors: Sequence[float], trials: int = TRIALS) -> str:
    """A line of the table."""
    begins = np.random.default_rng(0).integers(len(calls), size=trials)
    done = [replay(calls, factors, int(begin)) for begin in begins]
    errors = [
        abs(measured / factor - 1)
        for each in done
        for measured, factor in zip(each.measured, factors, strict=True)
    ]
    cells = (
        ", ".join(f"{factor:g}" for factor in factors),
        f"{statistics.mean(each.stays for each in done):.3f}",
        f"{sum(each.stays > 1 for each in done) / trials:.0%}",
        f"{statistics.median(errors):.1%}",
        f"{np.percentile(errors, 90):.0%}",
        f"{statistics.mean(each.calls for each in done):.0f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="horovod", help="which trains meanwhile")
    parser.add_argument("--epochs", type=int, default=60, help="of 50 calls each")
    parser.add_argument("--calls", type=Path, help="recorded before")
    parser.add_argument("--keep", type=Path, help="where to write what is recorded (.npy)")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        record(options.record, options.epochs)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = options.calls or options.keep or Path(folder) / "calls.npy"
        if not options.calls:
            worker = [sys.executable, __file__, "--record", file, "--epochs", str(options.epochs)]
            launcher = [sys.executable, ROOT / "launch/local.py", "-np", "2"]
            subprocess.run([*launcher, "--engine", options.engine, "--", *worker], check=True)
        calls = np.load(file, allow_pickle=False)
    low, middle, high = np.percentile(calls * 1e3, [10, 50, 90])
    print(
        f"{len(calls)} calls: median {middle:.1f} ms, 10 % below {low:.1f}, 10 % above {high:.1f}"
    )
    print(
        "\n| plans beside the default, their time / its | mean of what stays | a slower one "
        "stays | median error | 10 % of errors are above | calls |"
    )
    print("|---|---|---|---|---|---|")
    for factors in CASES:
        print(row(calls, factors))


if __name__ == "__main__":
    main()
