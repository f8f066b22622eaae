"""What a step of a pipeline keeps in memory, over the number of micro-batches.

    python expr/pipe_par/memory.py [--schedules 1f1b zb_h1 gpipe] [--microbatches 4 8 12 16]
                                   [--samples 1024]

Two ranks, each bound to a core. Measured is the most that the kernel has seen of a process during a
step, above what it had before; predicted is what the planner goes by, without the accumulated
gradients, which are there all the time.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from mpirun import command, environment

FOLDER = Path(__file__).parent
CSV = FOLDER / "memory.csv"
SCHEDULES = ("1f1b", "zb_h1", "gpipe")
RANKS = 2
SAMPLES, WIDTH = 1024, 512  # of a micro-batch, of a layer: 2 MB of activations
VARIABLES = {
    # What is freed goes back to the kernel at once, which then sees what is in use.
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",  # where oneDNN is used, it keeps what it has had
}


def run(
    schedule: str, numbers: list[int], samples: int = SAMPLES, width: int = WIDTH
) -> list[dict[str, Any]]:
    """A row for each rank and number of micro-batches; bytes. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="ooodist-memory-") as folder:
        answer = Path(folder) / "answer.json"
        subprocess.run(
            command(
                *(RANKS, "memory_worker.py", answer, schedule, samples, width, *numbers),
                binding="core",
            ),
            env=environment(VARIABLES),
            check=True,
        )
        rows: list[dict[str, Any]] = json.loads(answer.read_text())
    return [{"schedule": schedule, **row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES))
    parser.add_argument("--microbatches", nargs="+", type=int, default=[4, 8, 12, 16])
    parser.add_argument("--samples", type=int, default=SAMPLES)
    options = parser.parse_args()
    rows = [
        row
        for name in options.schedules
        for row in run(name, options.microbatches, options.samples)
    ]
    with CSV.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print("| schedule | rank | m | measured (MB) | predicted (MB) | error |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        error = row["predicted"] / row["measured"] - 1
        print(
            f"| {row['schedule']} | {row['rank']} | {row['microbatches']} | "
            f"{row['measured'] / 1e6:.1f} | {row['predicted'] / 1e6:.1f} | {error:+.1%} |"
        )


if __name__ == "__main__":
    main()
