"""How long a step takes where the network is many times too slow, by how gradients travel.

The rows train one model each, in one job of two hosts with a core each, and take turns, step by
step; a plan for several steps a call has a call of so many. "No network" is Keras's step on each
host alone, where nothing is exchanged.

    python launch/netlab.py -np 2 --rate 25Mbit -- python expr/slow_networks/run.py --rate 25Mbit
    ... [--job expr/data_par/jobs/bert.yaml] [--turns 3] [--ranks 4 16]

Prints a table, and adds it to ``steps.csv``.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import keras

import ooodist
from ooodist import models
from ooodist.config import job as job_file
from ooodist.config.keras_objects import make_loss, make_optimizer
from ooodist.job.building import load_and_build

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "steps.csv"
COLUMNS = ("model", "rate", "row", "seconds", "megabytes")
ALONE, FULL, PLANNED = "no network", "full width", "planned low rank"
PLANNED_KEYS = [
    *("order.name=planned", "exchange.wire=planned", "exchange.low_rank=auto"),
    *("planning.trial=false", "planning.profile_anew=true"),
]


def main() -> None:
    """Measures, and prints the rows on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", type=Path, default=HERE.parent / "data_par/jobs/bert.yaml")
    parser.add_argument("--rate", required=True, help="as given to launch/netlab.py")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16])
    options = parser.parse_args()
    engine = ooodist.init()
    keys = {FULL: [], "float16": ["exchange.wire=float16"]}
    keys |= {f"low rank {rank}": [f"exchange.low_rank={rank}"] for rank in options.ranks}
    keys[PLANNED] = PLANNED_KEYS
    made: dict[str, keras.Model] = {}
    for row, overrides in keys.items():
        config = job_file.load(options.job, overrides)
        data, _, made[row] = load_and_build(config, engine)
    made[ALONE] = models.build(config.model, data)
    made[ALONE].compile(
        make_optimizer(config.optimizer), make_loss(config.loss, data.task), jit_compile=False
    )
    batch = next(iter(data.train))
    seconds: dict[str, list[float]] = {row: [] for row in made}
    calls: dict[str, tuple[Callable[[], object], int]] = {}
    for row, model in made.items():
        call: Callable[[], object] = partial(model.train_on_batch, *batch)
        call()  # plans, and traces
        steps = 1 if row == ALONE else model.ooodist.strategy.inner.steps_per_execution
        if steps > 1:
            call = partial(model.ooodist.strategy.inner.runner(), [batch] * steps)
            call()
        calls[row] = call, steps
    for _ in range(options.turns):
        for row, (call, steps) in calls.items():
            engine.barrier()
            began = time.perf_counter()
            call()
            seconds[row].append((time.perf_counter() - began) / steps)
    if engine.rank == 0:
        report(options.job.stem, options.rate, seconds, made)


def report(
    model: str, rate: str, seconds: dict[str, list[float]], made: dict[str, keras.Model]
) -> None:
    """Prints the table, and adds its rows to the file."""
    is_new = not OUTPUT.exists()
    alone = statistics.median(seconds[ALONE])
    with OUTPUT.open("a", newline="") as file:
        rows = csv.writer(file)
        if is_new:
            rows.writerow(COLUMNS)
        for row, own in seconds.items():
            sent, predicted = 0.0, ""
            if row != ALONE:
                strategy = made[row].ooodist.strategy.inner
                traced = strategy.backward.steps[-1]
                if strategy.predicted_seconds is not None:
                    predicted = f" ({strategy.predicted_seconds:.3f} predicted)"
                sent = sum(exchange.num_bytes for exchange in traced.exchanges) / 1e6
            rows.writerows([model, rate, row, f"{each:.4f}", f"{sent:.3f}"] for each in own)
            median = statistics.median(own)
            print(
                f"| {model}, {rate} | {row} | {median:.3f}{predicted} | {median / alone:.2f} | "
                f"{sent:.2f} |"
            )


if __name__ == "__main__":
    main()
