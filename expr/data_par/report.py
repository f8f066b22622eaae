"""The tables and the figure of results.csv: ``python expr/data_par/report.py [results.csv]``.

Writes results.md, speedup.png and speedup.svg beside the file.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROWS = {
    "late_pull": "baseline engine, sums asked for late (as without our patch)",
    "baseline": "baseline engine",
    "barrier_removed": "barrier removed only",
    "first_k": "reverse first-k only",
    "priority": "priority (ByteScheduler/P3 style)",
    "planned": "planned",
    "carried": "planned, one step a call, carried",
}
NUMBERS = (
    *("predicted", "predicted_then", "lower_bound"),
    *("compute", "exchange", "exchange_cpu"),
)
NOT_NOTED = "an AMD EPYC with VNNI, on which a step takes about half as long"
COLORS = {
    "barrier_removed": "#8fb8de",
    "first_k": "#c9a0dc",
    "priority": "#e8b04a",
    "planned": "#2e8b57",
    "carried": "#1b4f72",
}


@dataclass(frozen=True)
class Result:
    """The repeats of one row of one setting; seconds of a step.

    Attributes:
        batch: samples of a worker.
        predicted: before anything was timed.
        predicted_then: at the speed at which was computed while the row was timed.
        exchange_cpu: seconds of the core that the exchange takes.
        processor: of the machine; empty where it was not noted yet.
    """

    seconds: tuple[float, ...]
    batch: int
    steps_per_execution: int
    predicted: float
    predicted_then: float
    lower_bound: float
    compute: float
    exchange: float
    exchange_cpu: float
    processor: str

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles."""
        if len(self.seconds) < 2:
            return self.median, self.median
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return first, third

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.median - 1

    @property
    def error_then(self) -> float:
        """Of the prediction for the speed of that time."""
        return self.predicted_then / self.median - 1


Setting = tuple[str, str, int, float]  # model, engine, workers, ratio


def read(file: Path) -> dict[Setting, dict[str, Result]]:
    """The results by setting and row; models, engines and ratios in order."""
    lines: dict[Setting, dict[str, list[dict[str, str]]]] = {}
    with file.open(newline="") as opened:
        for line in csv.DictReader(opened):
            setting = (line["model"], line["engine"], int(line["workers"]), float(line["ratio"]))
            lines.setdefault(setting, defaultdict(list))[line["row"]].append(line)
    return {
        setting: {
            row: Result(
                seconds=tuple(float(line["seconds"]) for line in rows[row]),
                batch=int(rows[row][-1]["batch"]),
                steps_per_execution=int(rows[row][-1]["steps_per_execution"]),
                processor=rows[row][-1]["processor"] or "",
                **{name: float(rows[row][-1][name]) for name in NUMBERS},
            )
            for row in ROWS
            if row in rows
        }
        for setting, rows in sorted(lines.items())
    }


def summary(results: dict[Setting, dict[str, Result]]) -> str:
    """A line for each setting, as Markdown: speed-ups, and how good planned is."""
    shown = list(COLORS)
    lines = [
        f"| | exchange / compute | {' | '.join(ROWS[row].partition(' (')[0] for row in shown)} "
        "| planned, of the lower bound | planned, error of the prediction | machine |",
        "|" + "---|" * (len(shown) + 5),
    ]
    machines: dict[str, str] = {}
    for (model, engine, workers, ratio), rows in results.items():
        baseline = rows["baseline"].median
        # Not all settings were run again when a row came to be.
        speed_ups = [f"{baseline / rows[row].median:.2f}x" if row in rows else "-" for row in shown]
        planned = rows["planned"]
        lines.append(
            f"| {model}, {engine} x {workers} | {ratio:g} | {' | '.join(speed_ups)} "
            f"| {planned.lower_bound / planned.median:.0%} | {planned.error:+.1%} "
            f"| {machines.setdefault(planned.processor, chr(ord('A') + len(machines)))} |"
        )
    lines.append("")
    lines += [f"Machine {name}: {text or NOT_NOTED}." for text, name in machines.items()]
    return "\n".join(lines) + "\n"


def table(results: dict[Setting, dict[str, Result]]) -> str:
    """A line for each row of each setting, as Markdown."""
    lines = [
        "| model | engine | exchange / compute | row | steps per execution | ms a step (quartiles) "
        "| samples/s | speed-up | predicted ms | error | error at the speed of then "
        "| of the lower bound | CPU of the exchange |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (model, engine, workers, _), rows in results.items():
        for row, result in rows.items():
            low, high = result.spread
            speed_up = rows["baseline"].median / result.median
            lines.append(
                f"| {model} | {engine} x {workers} | {result.exchange / result.compute:.2f} "
                f"| {ROWS[row]} | {result.steps_per_execution} "
                f"| {result.median * 1e3:.0f} ({low * 1e3:.0f} to {high * 1e3:.0f}) "
                f"| {workers * result.batch / result.median:.1f} "
                f"| {speed_up:.2f}x | {result.predicted * 1e3:.0f} | {result.error:+.1%} "
                f"| {result.error_then:+.1%} | {result.lower_bound / result.median:.0%} "
                f"| {result.exchange_cpu / result.compute:.0%} |"
            )
    return "\n".join(lines) + "\n"


def draw(results: dict[Setting, dict[str, Result]], file: Path) -> None:
    """A panel for each model and engine: speed-up over the baseline by ratio, a bar a row."""
    panels = list(dict.fromkeys((model, engine) for model, engine, _, _ in results))
    models = list(dict.fromkeys(model for model, _ in panels))
    engines = list(dict.fromkeys(engine for _, engine in panels))
    figure, axes = plt.subplots(
        len(models),
        len(engines),
        figsize=(4.2 * len(engines), 2.6 * len(models)),
        squeeze=False,
        sharey=True,
    )
    shown = list(COLORS)
    width = 0.8 / len(shown)
    for i, model in enumerate(models):
        for j, engine in enumerate(engines):
            axis = axes[i][j]
            settings = [s for s in results if s[:2] == (model, engine)]
            axis.set_visible(bool(settings))
            axis.set_title(f"{model}, {engine}", fontsize=10)
            axis.axhline(1, color="#555555", linewidth=0.8)
            for at, setting in enumerate(settings):
                rows = results[setting]
                baseline = rows["baseline"].median
                for number, row in enumerate(shown):
                    if row not in rows:
                        continue
                    x = at + (number - (len(shown) - 1) / 2) * width
                    result = rows[row]
                    low, high = result.spread
                    height = baseline / result.median
                    spread = [[height - baseline / high], [baseline / low - height]]
                    axis.bar(x, height, width, color=COLORS[row], yerr=spread, ecolor="#444444")
                    predicted = rows["baseline"].predicted / result.predicted
                    axis.plot(x, predicted, marker="_", color="black", markersize=9)
            axis.set_xticks(range(len(settings)), [f"{setting[3]:g}" for setting in settings])
            if i == len(models) - 1:
                axis.set_xlabel("exchange / compute")
            if j == 0:
                axis.set_ylabel("speed-up over the baseline")
    axes[0][0].set_ylim(bottom=0.8)  # of all; the top is that of the highest bar
    bars = [plt.Rectangle((0, 0), 1, 1, color=COLORS[row]) for row in shown]
    mark = plt.Line2D([], [], marker="_", color="black", linestyle="", markersize=9)
    figure.legend(
        [*bars, mark],
        [*(ROWS[row] for row in shown), "predicted"],
        loc="lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(file.with_suffix(".png"), dpi=150)
    figure.savefig(file.with_suffix(".svg"))


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("results.csv")
    results = read(file)
    text = f"{summary(results)}\nAll rows:\n\n{table(results)}"
    file.with_name("results.md").write_text(text)
    draw(results, file.with_name("speedup"))
    print(text)


if __name__ == "__main__":
    main()
