"""Every schedule on two real stages: measured beside predicted, for several micro-batches a step.

    python expr/pipe_par/real.py                     # GPT and ResNet-50, m = 2, 4, 8, 16
    python expr/pipe_par/real.py --models gpt --microbatches 4 8 --repeats 3

Two ranks, each bound to a core of its own. What came out takes the place of what real.csv had of
the same model; real_report.py makes the table and the figure of it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import real_report
from mpirun import command, environment

from ooodist.profiler.conditions import processor

FOLDER = Path(__file__).parent
MODELS = ("gpt", "resnet50")
RANKS = 2


def run(model: str, numbers: list[int], repeats: int) -> list[dict[str, Any]]:
    """The rows of a model. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="ooodist-pipe-par-") as folder:
        answer = Path(folder) / "answer.json"
        job = FOLDER / "jobs" / f"{model}.yaml"
        # oneDNN computes a step with the same library on all processors; without it some do not.
        subprocess.run(
            command(RANKS, "real_worker.py", job, answer, repeats, *numbers, binding="core"),
            env=environment({"TF_ENABLE_ONEDNN_OPTS": "1"}),
            check=True,
        )
        rows: list[dict[str, Any]] = json.loads(answer.read_text())
    return [{"model": model, **row, "processor": processor()} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--microbatches", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for model in options.models:
        rows = run(model, options.microbatches, options.repeats)
        kept = [row for row in real_report.read() if row["model"] != model]
        with real_report.CSV.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows([*kept, *rows])
    real_report.main()


if __name__ == "__main__":
    main()
