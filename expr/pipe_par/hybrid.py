"""Two pipelines of two stages on two emulated hosts: sums over replicas at the end, and in buckets.

    sudo python expr/pipe_par/hybrid.py                      # 16 layers of width 1024, 1 Gbit/s
    sudo python expr/pipe_par/hybrid.py --rate 500Mbit --batch 4096 --repeats 3

    host0   ranks 0 and 1: stages 0 and 1 of pipeline 0      on a core of its own
      |     1 Gbit/s each way
    host1   ranks 2 and 3: stages 0 and 1 of pipeline 1      on a core of its own

All four ranks compute, in the schedule that is found for the measured stages. The two ways take
turns. What a trace of each turn says goes into hybrid.csv, and a table is printed; the traces of
the last turns stay in the folder that --traces names.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab_mpirun import run

from expr.lab.network import Lab
from ooodist.profiler.conditions import processor

CSV = Path(__file__).with_name("hybrid.csv")
HOSTS, RANKS_A_HOST = 2, 2
HEAD = "| sums | a step | predicted | error | sums of a rank | hidden |\n|---|---|---|---|---|---|"


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each turn. Raises CalledProcessError, and UserError without root."""
    with (
        tempfile.TemporaryDirectory(prefix="ooodist-hybrid-") as temporary,
        Lab(HOSTS, options.rate) as lab,
    ):
        folder = Path(temporary)
        answer = folder / "answer.json"
        traces = (options.traces or folder / "traces").resolve()
        sizes = options.layers, options.width, options.batch
        turns = options.repeats, options.steps
        arguments = answer, traces, *sizes, options.schedule, *turns
        # oneDNN computes a step with the same library on all processors.
        more = {"TF_ENABLE_ONEDNN_OPTS": "1"}
        run(lab, RANKS_A_HOST, folder, "hybrid_worker.py", *arguments, more=more)
        rows: list[dict[str, Any]] = json.loads(answer.read_text())
    return [{"rate": options.rate, **row, "processor": processor()} for row in rows]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Of medians over the turns of each way."""
    lines = [HEAD]
    for way in dict.fromkeys(row["sums"] for row in rows):
        own = [row for row in rows if row["sums"] == way]

        def median(key: str, own: Sequence[dict[str, Any]] = own) -> float:
            return statistics.median(row[key] for row in own)

        errors = statistics.median(row["predicted"] / row["measured"] - 1 for row in own)
        lines.append(
            f"| {way} | {median('measured') * 1e3:.0f} ms | {median('predicted') * 1e3:.0f} ms "
            f"| {errors:+.1%} | {median('sums_seconds') * 1e3:.0f} ms | {median('hidden'):.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="1Gbit", help="of each host's link, each way")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=2048, help="samples of a pipeline in a step")
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each way")
    parser.add_argument("--steps", type=int, default=4, help="recorded steps of a turn")
    parser.add_argument("--traces", type=Path, help="a folder for them (default: not kept)")
    options = parser.parse_args()
    rows = measure(options)
    with CSV.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(table(rows))


if __name__ == "__main__":
    main()
