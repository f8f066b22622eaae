"""What checkpoints inside epochs cost a job of two workers: see README.md.

    python expr/overhead/checkpoints.py [--turns 3] [--every 100] [--output checkpoints.csv]

Jobs with and without checkpoints take turns. What a checkpoint costs is read off the jobs that
have them, where the machine is the same: time from its step on, less as many undisturbed steps.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMES = "OOODIST_STEP_TIMES"  # a file for the times at which rank 0's steps end
STEPS = 600
MODELS = {
    "ResNet-20": ("{name: resnet20}", "[8, 8, 1]"),
    "ResNet-20, width 32": ("{name: resnet20, width: 32}", "[8, 8, 1]"),
    "MLP of 3 x 2048": ("{name: mlp, layers: [2048, 2048, 2048]}", "[64]"),
}


def job(model: str, every: int, folder: Path, times: Path) -> list[float]:
    """Trains, and returns the times at which steps ended, in seconds; ``every``: 0 for never."""
    name, shape = MODELS[model]
    samples = STEPS * 80  # a fifth is for validation
    settings = [
        f"model={name}",
        f"data={{name: synthetic, input_shape: {shape}, num_classes: 10, num_samples: {samples}}}",
        "optimizer={name: sgd, learning_rate: 0.01, momentum: 0.9}",
        "batch=32",
        "epochs=1",
        f"steps_per_epoch={STEPS}",
        f"checkpoint={{every_epochs: 0, every_steps: {every}}}",
        "report.tensorboard=false",
        f"output={folder}",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    launcher = [sys.executable, "launch/local.py", "-np", "2", "--engine", "collective", "--"]
    subprocess.run(
        [*launcher, sys.executable, str(Path(__file__).resolve()), "--train", *words],
        cwd=ROOT,
        env=os.environ | {TIMES: str(times), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    found: list[float] = json.loads(times.read_text())
    return found


def train(arguments: Sequence[str]) -> int:
    """A worker: trains as ``python -m ooodist.train`` does; rank 0 writes when steps ended."""
    import time

    import ooodist.job.run
    import ooodist.train
    from ooodist.trainer.progress import StepTimer

    ended = []

    class KeepTimes(StepTimer):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            super().on_train_batch_end(batch, logs)
            ended.append(time.perf_counter())

    ooodist.job.run.StepTimer = KeepTimes
    code = ooodist.train.main(list(arguments))
    if os.environ["OOODIST_RANK"] == "0":
        Path(os.environ[TIMES]).write_text(json.dumps(ended))
    return code


def costs(times: Sequence[float], every: int) -> list[float]:
    """Returns seconds that each checkpoint has cost, but for the first and the last.

    The steps of an interval before a checkpoint are undisturbed if writing ends within its first
    half: their median is taken off each of the ``every`` steps from the checkpoint on.
    """
    steps = [after - before for before, after in itertools.pairwise(times)]
    found = []
    for begin in range(2 * every, len(steps) - every, every):
        quiet = statistics.median(steps[begin - every // 2 : begin - 2])
        # The step that saves is the one that ends before ``begin``; its callback is in the next.
        half = steps[begin - 2 : begin + every // 2 - 2]
        found.append(sum(half) - quiet * len(half))
    return found


def main(arguments: list[str]) -> int:
    """Runs the jobs and prints the table."""
    if arguments[:1] == ["--train"]:
        return train(arguments[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("checkpoints.csv"))
    options = parser.parse_args(arguments)
    rows = []
    for model, turn in itertools.product(options.models, range(options.turns)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            without = job(model, 0, folder / "without", folder / "times")
            times = job(model, options.every, folder / "with", folder / "times")
            (newest, *_) = sorted((folder / "with").glob("checkpoint-*"), reverse=True)
            size = newest.stat().st_size
        for way, each in (("without", without), ("with", times)):
            steps = [after - before for before, after in itertools.pairwise(each)]
            rows.append(
                {
                    "model": model,
                    "turn": turn,
                    "way": way,
                    "megabytes": round(size / 1e6, 1),
                    "median_ms": round(1e3 * statistics.median(steps), 3),
                    "mean_ms": round(1e3 * statistics.mean(steps[options.every :]), 3),
                    "costs_ms": " ".join(
                        f"{1e3 * cost:.1f}" for cost in costs(each, options.every)
                    ),
                }
            )
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(table(rows))
    return 0


def table(rows: Sequence[dict[str, object]]) -> str:
    """Returns a line a model: what a checkpoint costs, and how often it may be written."""
    lines = [
        "| model | checkpoint | a step | a checkpoint costs | the same without one "
        "| 2 % of training: every | with / without |",
        "|---" * 7 + "|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        by_way = {way: [row for row in own if row["way"] == way] for way in ("with", "without")}
        cost, none = (
            statistics.median(
                float(each) for row in by_way[way] for each in str(row["costs_ms"]).split()
            )
            for way in ("with", "without")
        )
        step = statistics.median(float(str(row["median_ms"])) for row in by_way["without"])
        means = [
            float(str(one["mean_ms"])) / float(str(other["mean_ms"]))
            for one, other in zip(by_way["with"], by_way["without"], strict=True)
        ]
        often = max(1, round(cost / 0.02 / step))
        lines.append(
            f"| {model} | {own[0]['megabytes']} MB | {step:.1f} ms | {cost:.0f} ms | {none:.0f} ms "
            f"| {often} steps ({often * step / 1e3:.1f} s) "
            f"| {', '.join(f'{each:.3f}' for each in means)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
