"""Schedules found while training, against one found before and against 1F1B: two real stages.

    python expr/pipe_par/live.py                               # GPT, 4 micro-batches of 4
    python expr/pipe_par/live.py --model resnet50 --steps 150
    python expr/pipe_par/live.py --drift                       # a core is kept busy for a while

Jobs take turns. Two ranks, each bound to a core of its own. Rows are added to live.csv.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from mpirun import command, environment

FOLDER = Path(__file__).parent
CSV = FOLDER / "live.csv"
WAYS = {
    "auto": ["parallel.schedule=auto", "planning.share=1.0"],
    "auto, found before": ["parallel.schedule=auto", "planning.trial=false"],
    "1f1b": ["parallel.schedule=1f1b"],
}
LAST_STEPS = 50  # whose median counts
BUSY_SECONDS = 60


def run(model: str, microbatches: int, steps: int, sets: list[str], burn_at: int) -> dict[str, Any]:
    """What live_worker.py says of a job. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="ooodist-pipe-par-") as folder:
        answer = Path(folder) / "answer.json"
        job = FOLDER / "jobs" / f"{model}.yaml"
        more = [
            f"batch={4 * microbatches}",
            f"parallel={{pipeline: 2, microbatches: {microbatches}}}",
            *sets,
        ]
        burning = BUSY_SECONDS if burn_at else 0
        subprocess.run(
            command(
                2, "live_worker.py", job, answer, steps, burn_at, burning, *more, binding="core"
            ),
            env=environment({"TF_ENABLE_ONEDNN_OPTS": "1"}),
            check=True,
        )
        found: dict[str, Any] = json.loads(answer.read_text())
    return found


def show(way: str, found: dict[str, Any]) -> dict[str, Any]:
    """Prints a row, and what the log said; returns the row."""
    seconds = [after - before for before, after in itertools.pairwise(found["ends"])]
    row = {
        "way": way,
        "first_step_seconds": round(found["first_step_seconds"], 2),
        "step_ms": round(statistics.median(seconds[-LAST_STEPS:]) * 1e3, 1),
        "steps": len(seconds) + 1,
        "all_seconds": round(found["ends"][-1], 1),
        "stages": found["stages"],
        "schedule": found["schedule"],
    }
    print(row, flush=True)
    for step, line in found["lines"]:
        print(
            f"    after {step} steps, {found['ends'][max(0, step - 1)]:.0f} s: {line}", flush=True
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("gpt", "resnet20", "resnet50"), default="gpt")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--drift", action="store_true", help="only auto, beside a busy process")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    ways = {"auto": WAYS["auto"]} if options.drift else WAYS
    burn_at = options.steps // 3 if options.drift else 0
    for repeat in range(options.repeats):
        for way, sets in ways.items() if repeat % 2 == 0 else reversed(ways.items()):
            result = run(options.model, options.microbatches, options.steps, sets, burn_at)
            row = show(way, result)
            case = f"{options.model}{', a core busy for a while' if options.drift else ''}"
            rows.append({"case": case, "microbatches": options.microbatches, **row})
    is_new = not CSV.exists()
    with CSV.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
