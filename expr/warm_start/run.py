"""Makes the zoo, then trains the architectures that are held out, cold and warm.

    python expr/warm_start/run.py zoo --zoo runs/warm_start/zoo                # about 10 minutes
    python expr/warm_start/run.py train --zoo runs/warm_start/zoo              # about an hour
    python expr/transfer/mapping/report.py                                      # tables and figure

Each has two processes, one a core. What is in the zoo, or in the results, is not trained again, so
both can be interrupted. The zoo is a folder of Keras files that ``python -m ooodist.zoo list``
shows.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
COLUMNS = (
    *("architecture", "method", "seed", "epoch", "seconds", "accuracy"),
    *("parent", "score", "carried", "start_seconds"),
)
SEEDS = (1, 2, 3)
ZOO_SEED = 100  # of the models in the zoo: others than those of the trainings


def main() -> None:
    options = _parse()
    if options.part is None:
        cores = sorted(os.sched_getaffinity(0))
        command = [sys.executable, *sys.argv, "--parts", str(len(cores)), "--part"]
        running = [
            subprocess.Popen(["taskset", "-c", str(core), *command, str(part)])
            for part, core in enumerate(cores)
        ]
        sys.exit(max(process.wait() for process in running))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if options.what == "zoo":
        make_zoo(options)
    else:
        train_all(options)


def make_zoo(options: argparse.Namespace) -> None:
    """Trains the models of the zoo that are not in it yet."""
    from architectures import ZOO, task_of
    from train import train

    from ooodist.errors import UserError
    from ooodist.zoo.entry import Meta
    from ooodist.zoo.zoo import Zoo

    with Zoo(options.zoo) as zoo:
        known = {row.meta.name for row in zoo.list()}
    wanted = [name for name in ZOO if name not in known][options.part :: options.parts]
    progress = _Progress(len(wanted), options.part)
    for name in wanted:
        task = task_of(name)
        model, rows = train(name, "cold", ZOO_SEED, options.zoo, kept=True)
        accuracy = rows[-1]["accuracy"]
        meta = Meta(name=name, task=task.task, dataset=task.name, metrics={"accuracy": accuracy})
        refused = ""
        with Zoo(options.zoo) as zoo:
            try:
                zoo.add_model(model, meta)
            except UserError as error:  # it has learned far less than the others
                refused = f", refused: {error}"
        progress.done(f"{name}: accuracy {accuracy:.4f}{refused}")


def train_all(options: argparse.Namespace) -> None:
    """Trains what is not in the results yet."""
    from architectures import HELD_OUT
    from train import METHODS, train

    known = set()
    if options.output.exists():
        with options.output.open(newline="") as file:
            known = {(r["architecture"], r["method"], r["seed"]) for r in csv.DictReader(file)}
    jobs = [
        (name, method, seed)
        for seed in SEEDS
        for number, name in enumerate(HELD_OUT)
        if number % options.parts == options.part
        for method in METHODS
        if (name, method, str(seed)) not in known
    ]
    progress = _Progress(len(jobs), options.part)
    for name, method, seed in jobs:
        _, rows = train(name, method, seed, options.zoo)
        _append(options.output, rows)
        best = max(row["accuracy"] for row in rows)
        source = f" from {rows[0]['parent']}" if rows[0]["parent"] else ""
        progress.done(f"{name} {method}{source}, seed {seed}: best accuracy {best:.4f}")


def _append(file: Path, rows: list[dict[str, object]]) -> None:
    with file.open("a", newline="") as output:
        fcntl.flock(output, fcntl.LOCK_EX)
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n")
        if output.tell() == 0:
            writer.writeheader()
        writer.writerows(rows)


class _Progress:
    """What is done, and how long the rest will take."""

    def __init__(self, number: int, part: int) -> None:
        self._number, self._part = number, part
        self._done = 0
        self._began = time.monotonic()

    def done(self, text: str) -> None:
        self._done += 1
        left = (time.monotonic() - self._began) / self._done * (self._number - self._done)
        print(
            f"[{self._part}] {self._done}/{self._number} {text} | {left / 60:.0f} min left",
            flush=True,
        )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("zoo", "train"))
    parser.add_argument("--zoo", default="runs/warm_start/zoo", help="folder of the zoo")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    parser.add_argument("--part", type=int, help="of the work; without it, all")
    parser.add_argument("--parts", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
