"""What gradients in fewer bytes do to accuracy: the same training with each, seed by seed.

    python expr/wire/accuracy.py                  # about ten minutes on two cores
    python expr/wire/accuracy.py --report         # only the table, of the CSV file

Two workers train ResNet-20 on the handwritten digits (the quick start's job) for some epochs. What
a training finds is added to the CSV file when it ends; one whose row is there already is not
repeated.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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
}
COLUMNS = ("wire", "seed", "epochs", "loss", "val_loss", "val_accuracy")


def trained(wire: str, seed: int, epochs: int) -> dict[str, str]:
    """Trains once; returns the last epoch's row of the job's history."""
    with tempfile.TemporaryDirectory(prefix="ooodist-wire-") as output:
        overrides = [f"seed={seed}", f"epochs={epochs}", "checkpoint.every_epochs=0", *WIRES[wire]]
        command = [sys.executable, str(ROOT / "launch/local.py"), "-np", "2"]
        command += ["--engine", "collective", "--", sys.executable, "-m", "ooodist.train"]
        command += ["--output", output]
        for override in overrides:
            command += ["--set", override]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        with (Path(output) / "history.csv").open(newline="") as file:
            return list(csv.DictReader(file))[-1]


def report(rows: list[dict[str, str]]) -> str:
    """A line a wire: mean and extremes over the seeds."""
    lines = [
        "| wire | validation accuracy | validation loss | training loss |",
        "|---|---|---|---|",
    ]
    for wire in WIRES:
        own = [row for row in rows if row["wire"] == wire]
        if not own:
            continue
        cells = []
        for name, digits in (("val_accuracy", 4), ("val_loss", 4), ("loss", 4)):
            values = [float(row[name]) for row in own]
            cells.append(
                f"{statistics.mean(values):.{digits}f} "
                f"({min(values):.{digits}f} to {max(values):.{digits}f})"
            )
        lines.append(f"| {wire} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--wires", nargs="+", choices=WIRES, default=[*WIRES][:5])
    parser.add_argument("--results", type=Path, default=HERE / "accuracy.csv")
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
            last = trained(wire, seed, options.epochs)
            row = {"wire": wire, "seed": str(seed), "epochs": str(options.epochs)}
            rows.append(row | {name: last[name] for name in COLUMNS[3:]})
            with options.results.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
    print(report(rows))


if __name__ == "__main__":
    main()
