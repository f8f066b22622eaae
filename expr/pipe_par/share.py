"""What a rank holds of a model that is trained in a pipeline, from its building on.

    python expr/pipe_par/share.py [--ranks 1 2 4] [--layers 24] [--width 1024] [--steps 3]

A GPT (300 million parameters by default) with Adam. Measured is the most memory that the kernel has
seen of a process at any time (VmHWM): while it built, planned and trained, above what a process has
that has imported TensorFlow and computed something. Predicted is what the plan goes by: weights,
optimizer state, gradient sums, activations, messages and workspace of the rank's stages.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from memory import VARIABLES
from mpirun import command, environment

CSV = Path(__file__).with_name("share.csv")


def run(ranks: int, layers: int, width: int, steps: int, schedule: str) -> list[dict[str, Any]]:
    """A row for each rank; bytes. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="ooodist-share-") as folder:
        answer = Path(folder) / "answer.json"
        subprocess.run(
            command(ranks, "share_worker.py", answer, layers, width, steps, schedule),
            env=environment(VARIABLES),
            check=True,
        )
        rows: list[dict[str, Any]] = json.loads(answer.read_text())
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--schedule", default="1f1b")
    options = parser.parse_args()
    rows = [
        row
        for ranks in options.ranks
        for row in run(ranks, options.layers, options.width, options.steps, options.schedule)
    ]
    with CSV.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print("| ranks | rank | parameters | share (MB) | predicted (MB) | measured (MB) | error |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        error = row["predicted"] / row["measured"] - 1
        print(
            f"| {row['ranks']} | {row['rank']} | {row['parameters'] / 1e6:.1f} M "
            f"| {row['share'] / 1e6:.0f} | {row['predicted'] / 1e6:.0f} "
            f"| {row['measured'] / 1e6:.0f} | {error:+.1%} |"
        )


if __name__ == "__main__":
    main()
