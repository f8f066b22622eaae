"""The figure and the table of predictions.csv: how much faster planned is than the baselines.

python expr/planning_at_scale/report.py    redraws the figure of the CSV file in this folder
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

FOLDER = Path(__file__).parent
MODELS = {"resnet50": "ResNet-50", "vgg16": "VGG16", "bert_24": "BERT-large"}
ENGINES = {"horovod": "ring (Horovod)", "byteps": "servers (BytePS)"}
BASELINES = {  # by their names in the CSV file: in words, and how they are drawn
    "baseline": ("as it comes", "^:"),
    "baseline_tuned": ("tuned", "o-"),
    "priority_tuned": ("priority", "s--"),
}
PLANS = ("planned", "carried", "narrow")
COLORS = ("#d1495b", "#2e86ab", "#3c8d40")  # of the bandwidths, slowest first

# (model, engine, Gbit/s) -> workers -> plan -> seconds a step
Predictions = dict[tuple[str, str, float], dict[int, dict[str, float]]]


def read(file: Path) -> Predictions:
    """The predictions of a CSV file that run.py wrote."""
    predictions: Predictions = defaultdict(lambda: defaultdict(dict))
    with file.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            key = row["model"], row["engine"], float(row["gbit_per_second"])
            predictions[key][int(row["workers"])][row["plan"]] = float(row["step_seconds"])
    return predictions


def table(file: Path, workers: int) -> str:
    """Markdown, one line for each model, engine and bandwidth."""
    lines = [
        "| model | exchange | Gbit/s | as it comes | tuned | priority | planned | carried | in 16 "
        "bits | lower bound | planned over as it comes | over tuned | over priority | carried over "
        "tuned |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (model, engine, bandwidth), cases in read(file).items():
        seconds = cases[workers]
        planned = seconds["planned"]
        times = [seconds.get(name) for name in (*BASELINES, *PLANS, "lower_bound")]
        cells = [MODELS[model], ENGINES[engine], f"{bandwidth:g}"]
        cells += ["-" if value is None else f"{1e3 * value:.0f} ms" for value in times]
        cells += [f"{seconds[name] / planned:.2f}x" for name in BASELINES]
        carried = seconds.get("carried")
        cells.append(f"{seconds['baseline_tuned'] / carried:.2f}x" if carried else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(file: Path, figure: Path) -> None:
    """Writes ``figure`` with the suffixes .png and .svg from a CSV file of run.py."""
    predictions = read(file)
    models = [model for model in MODELS if any(key[0] == model for key in predictions)]
    engines = [engine for engine in ENGINES if any(key[1] == engine for key in predictions)]
    bandwidths = sorted({key[2] for key in predictions})
    colors = dict(zip(bandwidths, COLORS, strict=False))
    canvas, grid = pyplot.subplots(
        len(engines),
        len(models),
        figsize=(1 + 3.7 * len(models), 1.2 + 2.9 * len(engines)),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for axes_row, engine in zip(grid, engines, strict=True):
        for axes, model in zip(axes_row, models, strict=True):
            axes.axhline(1, color="black", linewidth=0.8)
            for bandwidth in bandwidths:
                _draw_case(axes, predictions[model, engine, bandwidth], colors[bandwidth])
            axes.set_title(f"{MODELS[model]}, {ENGINES[engine]}", fontsize=10)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xticks([2, 16, 128, 1024], ["2", "16", "128", "1,024"])
            axes.grid(alpha=0.3)
        axes_row[0].set_ylabel("predicted speed-up of planned")
    for axes in grid[-1]:
        axes.set_xlabel("workers")
    canvas.legend(handles=_legend(colors), loc="outside lower center", ncols=3, frameon=False)
    for suffix in (".png", ".svg"):
        canvas.savefig(figure.with_suffix(suffix), dpi=150)
    pyplot.close(canvas)


def _draw_case(axes: Axes, cases: dict[int, dict[str, float]], color: str) -> None:
    workers = sorted(cases)
    for baseline, (_, style) in BASELINES.items():
        speedups = [cases[count][baseline] / cases[count]["planned"] for count in workers]
        axes.plot(workers, speedups, style, color=color, markersize=3.5, linewidth=1.4)


def _legend(colors: dict[float, str]) -> list[Line2D]:
    return [
        *(Line2D([], [], color=color, label=f"{b:g} Gbit/s") for b, color in colors.items()),
        *(
            Line2D(
                [], [], color="black", marker=style[0], ls=style[1:], ms=3.5, label=f"over {name}"
            )
            for name, style in BASELINES.values()
        ),
    ]


if __name__ == "__main__":
    draw(FOLDER / "predictions.csv", FOLDER / "figure")
    print(table(FOLDER / "predictions.csv", workers=64))
