"""The table and the figure of what real.py has measured: real.md, real.png and real.svg."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ooodist.report import picture

FOLDER = Path(__file__).parent
CSV = FOLDER / "real.csv"
BASE = "1f1b"  # others are compared with it


@dataclass(frozen=True)
class Row:
    """A schedule on a model, over all repeats.

    Attributes:
        seconds: of a step, median.
        spread: half of the distance between the quartiles, as a share of the median.
        error: of the prediction that was made of the costs of the same repeat, median.
        bubble, predicted_bubble: medians.
        overhead: seconds of an action that sends or receives, without its waiting, median.
    """

    model: str
    placement: str
    schedule: str
    microbatches: int
    seconds: float
    spread: float
    predicted: float
    error: float
    bubble: float
    predicted_bubble: float
    overhead: float


def read() -> list[dict[str, Any]]:
    """The rows of real.csv; none if it is not there."""
    if not CSV.exists():
        return []
    with CSV.open(newline="") as file:
        return list(csv.DictReader(file))


def summarize(lines: Sequence[dict[str, Any]]) -> list[Row]:
    """A row for each model, schedule and number of micro-batches."""
    groups: dict[tuple[str, str, str, int], list[dict[str, Any]]] = {}
    for line in lines:
        key = (line["model"], line["placement"], line["schedule"], int(line["microbatches"]))
        groups.setdefault(key, []).append(line)
    rows = []
    for key, those in groups.items():
        values = {
            name: [float(line[name]) for line in those]
            for name in ("seconds", "predicted", "bubble", "predicted_bubble", "overhead")
        }
        pairs = zip(values["predicted"], values["seconds"], strict=True)
        low, _, high = statistics.quantiles(values["seconds"], n=4)
        median = {name: statistics.median(numbers) for name, numbers in values.items()}
        rows.append(
            Row(
                *key,
                seconds=median["seconds"],
                spread=(high - low) / 2 / median["seconds"],
                predicted=median["predicted"],
                error=statistics.median(predicted / seconds - 1 for predicted, seconds in pairs),
                bubble=median["bubble"],
                predicted_bubble=median["predicted_bubble"],
                overhead=median["overhead"],
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """In Markdown, with the throughput relative to 1F1B."""
    base = {(row.model, row.microbatches): row.seconds for row in rows if row.schedule == BASE}
    lines = [
        "| model | m | stages | schedule | step (ms) | spread | to 1f1b | predicted (ms) | error | "
        "bubble | predicted | overhead (ms) |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: (r.model, r.microbatches, r.placement, r.schedule)):
        ratio = base[row.model, row.microbatches] / row.seconds
        lines.append(
            f"| {row.model} | {row.microbatches} | {row.placement} | {row.schedule} | "
            f"{row.seconds * 1e3:.0f} | {row.spread:.1%} | {ratio:.2f}x | "
            f"{row.predicted * 1e3:.0f} | {row.error:+.1%} | {row.bubble:.1%} | "
            f"{row.predicted_bubble:.1%} | {row.overhead * 1e3:.2f} |"
        )
    return "\n".join(lines)


def draw(rows: Sequence[Row]) -> Figure:
    """Micro-batches a second over their number: a panel for each model and placement of stages,
    a line a schedule, 1F1B in all of them; predicted ones dashed."""
    models = sorted({row.model for row in rows})
    placements = sorted({row.placement for row in rows})
    colors = {name: f"C{n}" for n, name in enumerate(sorted({row.schedule for row in rows}))}
    picture = Figure(figsize=(4 * len(placements), 3.2 * len(models)), layout="constrained")
    all_axes = picture.subplots(len(models), len(placements), sharey="row", squeeze=False)
    for of_model, model in zip(all_axes, models, strict=True):
        for axes, placement in zip(of_model, placements, strict=True):
            for name, color in colors.items():
                line = sorted(
                    (
                        row
                        for row in rows
                        if (row.model, row.schedule) == (model, name)
                        and (row.placement == placement or name == BASE)
                    ),
                    key=lambda row: row.microbatches,
                )
                counts = [row.microbatches for row in line]
                measured = [row.microbatches / row.seconds for row in line]
                predicted = [row.microbatches / row.predicted for row in line]
                if line:
                    axes.plot(counts, measured, "o-", color=color, markersize=4, label=name)
                    axes.plot(counts, predicted, "--", color=color, linewidth=0.8)
            axes.set_xscale("log", base=2)
            axes.set_xticks([2, 4, 8, 16], ["2", "4", "8", "16"])
            axes.set_title(f"{model}, {placement}", fontsize=10)
            axes.legend(fontsize=7, frameon=False)
        of_model[0].set_ylabel("micro-batches/s (dashed: predicted)")
    for axes in all_axes[-1]:
        axes.set_xlabel("micro-batches a step")
    return picture


def main() -> None:
    rows = summarize(read())
    text = table(rows)
    (FOLDER / "real.md").write_text(text + "\n", encoding="utf-8")
    picture.write(draw(rows), [FOLDER / "real.png", FOLDER / "real.svg"])
    print(text)


if __name__ == "__main__":
    main()
