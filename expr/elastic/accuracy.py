"""How soon a selection of tensors reaches the accuracy of full training.

    python expr/elastic/accuracy.py                  # everything: about an hour on two cores
    python expr/elastic/accuracy.py --tasks digits --seeds 1 --methods full importance
    python expr/elastic/accuracy.py --report         # only the tables and figures, of the CSV
    python expr/elastic/accuracy.py --equal --rho 0.3 0.5 0.7 --seeds 1 2 3 4 5 --tasks vit

With ``--equal`` all methods train for as many epochs, while the learning rate falls to zero.

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

from report import write_equal_report, write_report

HERE = Path(__file__).parent
TASKS = ("digits", "gpt", "mobilenet", "vit")
METHODS = (
    *("full", "importance", "published", "gradient_magnitude", "weight_magnitude"),
    *("auto", "bias_norm_head", "head"),
)
WITHOUT_RHO = ("full", "auto", "bias_norm_head", "head")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="What is compared, and how it is measured: README.md beside this file.",
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS[:2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rho", type=float, nargs="+", default=[0.5], help="shares of a full step")
    parser.add_argument("--equal", action="store_true", help="equal epochs, and a rate that decays")
    parser.add_argument("--output", type=Path, help="CSV file (default results.csv or equal.csv)")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "ooodist-elastic",
        help="folder for what models have learned first, and profiles (default: %(default)s)",
    )
    options = parser.parse_args()
    options.output = options.output or HERE / ("equal.csv" if options.equal else "results.csv")
    if not options.report:
        run(options)
    print(write_equal_report(options.output) if options.equal else write_report(options.output))


def run(options: argparse.Namespace) -> None:
    """Runs what is not in the CSV file yet."""
    done = known(options.output)
    jobs = []
    for task in options.tasks:
        for seed in options.seeds:
            if not (options.cache / f"{task}-{seed}.weights.h5").exists():
                jobs.append((task, seed, None, 1.0))
            jobs += [
                (task, seed, method, rho)
                for method in options.methods
                for rho in (options.rho[:1] if method in WITHOUT_RHO else options.rho)
                if (task, seed, label(options, method, rho)) not in done
            ]
    began = time.monotonic()
    for number, (task, seed, method, rho) in enumerate(jobs):
        what = label(options, method, rho) if method else "what is learned first"
        name = f"{task}, seed {seed}: {what}"
        print(f"[{number + 1}/{len(jobs)}] {name}", flush=True)
        train(options, task, seed, method, rho)
        took = time.monotonic() - began
        left = took / (number + 1) * (len(jobs) - number - 1)
        print(f"    {took / 60:.1f} min so far, about {left / 60:.1f} min left", flush=True)


def label(options: argparse.Namespace, method: str, rho: float) -> str:
    """A method's name in the CSV file."""
    return f"{method} {rho:g}" if options.equal and method not in WITHOUT_RHO else method


def known(file: Path) -> set[tuple[str, int, str]]:
    """The trainings whose rows are in the file."""
    if not file.exists():
        return set()
    with file.open(newline="") as source:
        return {(r["task"], int(r["seed"]), r["method"]) for r in csv.DictReader(source)}


def train(
    options: argparse.Namespace, task: str, seed: int, method: str | None, rho: float
) -> None:
    """One training, in a process of its own; its log is in the cache."""
    command = [sys.executable, str(HERE / "train.py"), "--task", task, "--seed", str(seed)]
    command += ["--cache", str(options.cache)]
    if method is not None:
        command += ["--method", method, "--output", str(options.output)]
        command += ["--rho", str(rho), "--label", label(options, method, rho)]
        command += ["--equal"] if options.equal else []
        if method == "importance" and not options.equal and seed == options.seeds[0]:
            command += ["--selection", str(options.output.parent / f"{task}-selection")]
    options.cache.mkdir(parents=True, exist_ok=True)
    log = options.cache / f"{task}-{seed}-{method or 'first'}-{rho:g}.log"
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    lines = log.read_text().splitlines()
    if code:
        print("\n".join(lines[-20:]))
        raise SystemExit(f"{task}, seed {seed}, {method}: ended with {code}; its log is {log}")
    print(f"    {lines[-1]}")


if __name__ == "__main__":
    main()
