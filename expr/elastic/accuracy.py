"""How soon a selection of tensors reaches the accuracy of full training.

    python expr/elastic/accuracy.py                  # everything: about an hour on two cores
    python expr/elastic/accuracy.py --tasks digits --seeds 1 --methods full importance
    python expr/elastic/accuracy.py --report         # only the tables and figures, of the CSV

Trains each task with each method, seed by seed, each training in a process of its own, so that
nothing is left over from the one before. What a training finds is added to the CSV file when it
ends; a training whose rows are in there already is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import write_report

HERE = Path(__file__).parent
TASKS = ("digits", "gpt")
METHODS = (
    *("full", "importance", "published", "gradient_magnitude", "weight_magnitude"),
    *("auto", "bias_norm_head", "head"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="What is compared, and how it is measured: README.md beside this file.",
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rho", type=float, default=0.5, help="share of a full step (default 0.5)")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv", help="CSV file")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "ooodist-elastic",
        help="folder for what models have learned first, and profiles (default: %(default)s)",
    )
    options = parser.parse_args()
    if not options.report:
        run(options)
    print(write_report(options.output))


def run(options: argparse.Namespace) -> None:
    """Runs what is not in the CSV file yet."""
    done = known(options.output)
    jobs = []
    for task in options.tasks:
        for seed in options.seeds:
            if not (options.cache / f"{task}-{seed}.weights.h5").exists():
                jobs.append((task, seed, None))
            jobs += [(task, seed, m) for m in options.methods if (task, seed, m) not in done]
    began = time.monotonic()
    for number, (task, seed, method) in enumerate(jobs):
        name = f"{task}, seed {seed}: {method or 'what is learned first'}"
        print(f"[{number + 1}/{len(jobs)}] {name}", flush=True)
        train(options, task, seed, method)
        took = time.monotonic() - began
        left = took / (number + 1) * (len(jobs) - number - 1)
        print(f"    {took / 60:.1f} min so far, about {left / 60:.1f} min left", flush=True)


def known(file: Path) -> set[tuple[str, int, str]]:
    """The trainings whose rows are in the file."""
    if not file.exists():
        return set()
    with file.open(newline="") as source:
        return {(r["task"], int(r["seed"]), r["method"]) for r in csv.DictReader(source)}


def train(options: argparse.Namespace, task: str, seed: int, method: str | None) -> None:
    """One training, in a process of its own; its log is in the cache."""
    command = [sys.executable, str(HERE / "train.py"), "--task", task, "--seed", str(seed)]
    command += ["--cache", str(options.cache)]
    if method is not None:
        command += ["--method", method, "--output", str(options.output)]
        command += ["--rho", str(options.rho)]
        if method == "importance" and seed == options.seeds[0]:
            command += ["--selection", str(options.output.parent / f"{task}-selection")]
    options.cache.mkdir(parents=True, exist_ok=True)
    log = options.cache / f"{task}-{seed}-{method or 'first'}.log"
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    lines = log.read_text().splitlines()
    if code:
        print("\n".join(lines[-20:]))
        raise SystemExit(f"{task}, seed {seed}, {method}: ended with {code}; its log is {log}")
    print(f"    {lines[-1]}")


if __name__ == "__main__":
    main()
