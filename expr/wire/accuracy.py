"""What gradients in fewer bytes do to accuracy: the same training with each, seed by seed.

    python expr/wire/accuracy.py                  # about ten minutes on two cores
    python expr/wire/accuracy.py --report         # only the table, of the CSV file

Two workers train ResNet-20 on the handwritten digits (the quick start's job), or another job, for
some epochs. What a training finds is added to the CSV file when it ends; one whose row is there
already is not repeated. A plan depends on the network: ``--rate`` trains on an emulated one.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scipy import stats

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WIRES = {
    "float32": (),
    "float16": ("exchange.wire=float16",),
    "bfloat16": ("exchange.wire=bfloat16",),
    "float16, no feedback": ("exchange.wire=float16", "exchange.error_feedback=false"),
    "bfloat16, no feedback": ("exchange.wire=bfloat16", "exchange.error_feedback=false"),
    "low rank 4": ("exchange.low_rank=4",),
    "low rank 2": ("exchange.low_rank=2",),
    "low rank 4 after a tenth": ("exchange.low_rank=4", "exchange.low_rank_after=0.1"),
    "planned low rank": (
        *("order.name=planned", "exchange.wire=planned", "exchange.low_rank=auto"),
        "planning.trial=false",  # from the first step on
    ),
}
COLUMNS = ("wire", "seed", "epochs", "loss", "val_loss", "val_accuracy")


def trained(job: Path | None, rate: str | None, overrides: Sequence[str]) -> dict[str, str]:
    """Trains once; returns the last epoch's row of the job's history."""
    with tempfile.TemporaryDirectory(prefix="ooodist-wire-") as output:
        launcher = ["netlab.py", "--rate", rate] if rate else ["local.py"]
        command = [sys.executable, str(ROOT / "launch" / launcher[0]), "-np", "2", *launcher[1:]]
        command += ["--engine", "collective", "--", sys.executable, "-m", "ooodist.train"]
        command += ["--config", str(job)] if job else []
        command += ["--output", output]
        for override in overrides:
            command += ["--set", override]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        with (Path(output) / "history.csv").open(newline="") as file:
            return list(csv.DictReader(file))[-1]


def report(rows: list[dict[str, str]]) -> str:
    """A line a wire: mean and extremes over the seeds, and the difference from the first wire."""
    lines = [
        "| wire | validation accuracy | validation loss | training loss | "
        "accuracy less the first's | loss less the first's |",
        "|---|---|---|---|---|---|",
    ]
    first: dict[str, list[float]] = {}
    for wire in WIRES:
        own = [row for row in rows if row["wire"] == wire]
        if not own:
            continue
        cells = []
        values = {name: [float(row[name]) for row in own if row[name]] for name in COLUMNS[3:]}
        for name in ("val_accuracy", "val_loss", "loss"):
            found = values[name]
            cells.append(
                f"{statistics.mean(found):.4f} ({min(found):.4f} to {max(found):.4f})"
                if found
                else "-"
            )
        first = first or values
        cells += [difference(values[name], first[name]) for name in ("val_accuracy", "val_loss")]
        lines.append(f"| {wire} | {' | '.join(cells)} |")
    return "\n".join(lines)


def difference(values: Sequence[float], others: Sequence[float]) -> str:
    """Mean of a - b over the seeds, with its 95 % interval (Student's t, pairs)."""
    if not values or values == others or len(values) != len(others):
        return "-"
    low, high = stats.ttest_rel(values, others).confidence_interval()
    return f"{(low + high) / 2:+.4f} ({low:+.4f} to {high:+.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--wires", nargs="+", choices=WIRES, default=[*WIRES][:5])
    parser.add_argument("--results", type=Path, default=HERE / "accuracy.csv")
    parser.add_argument("--job", type=Path, help="its YAML file; the quick start's if not given")
    parser.add_argument("--rate", help="of an emulated network, as given to launch/netlab.py")
    parser.add_argument("--report", action="store_true", help="train nothing")
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    if options.results.exists():
        with options.results.open(newline="") as file:
            rows = list(csv.DictReader(file))
    known = {(row["wire"], row["seed"], row["epochs"]) for row in rows}
    for seed in () if options.report else options.seeds:
        for wire in options.wires:
            if (wire, str(seed), str(options.epochs)) in known:
                continue
            overrides = [f"seed={seed}", f"epochs={options.epochs}", "checkpoint.every_epochs=0"]
            last = trained(options.job, options.rate, [*overrides, *WIRES[wire]])
            row = {"wire": wire, "seed": str(seed), "epochs": str(options.epochs)}
            rows.append(row | {name: last.get(name, "") for name in COLUMNS[3:]})
            with options.results.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
    print(report(rows))


if __name__ == "__main__":
    main()
