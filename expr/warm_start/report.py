"""The tables and the figure of results.csv: ``python expr/transfer/mapping/report.py``.

The target of a seed is the best accuracy of its cold training. How long an architecture takes for
an epoch is the median over all its trainings, which compute the same steps: so what else the
machine did while one of them ran is not in the comparison. What finding and transforming a parent
took is added, the median over the seeds.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ooodist.report.picture import write

HERE = Path(__file__).parent
GOAL, MOST_DIFFERENCE, MOST_SHARE = 1.5, 0.003, 0.02
TICKS = (0.75, 1, GOAL, 2, 3, 5, 10, 20, 40)
WARM = ("warm", "same_shape", "random_parent")
LABELS = {"warm": "warm start", "same_shape": "same shapes only", "random_parent": "random parent"}
COLORS = {"warm": "#0072b2", "same_shape": "#e69f00", "random_parent": "#8c8c8c"}


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        accuracy: after each epoch.
        parent: name of the model from which it started; empty if it was cold.
        score: how similar that is.
        carried: share of the parameters that come from there.
        start_seconds: that finding and transforming it took.
    """

    accuracy: tuple[float, ...]
    parent: str
    score: float
    carried: float
    start_seconds: float

    def epochs_to(self, target: float) -> float:
        """Until this accuracy is reached; infinite if it never is."""
        found = (epoch for epoch, each in enumerate(self.accuracy, 1) if each >= target)
        return next(found, math.inf)


@dataclass(frozen=True)
class Outcome:
    """A method on one architecture, over the seeds.

    Attributes:
        faster: the cold training's time to its best accuracy by this one's time to that accuracy.
            Where that is not reached, this one's time is that of all its epochs: so the value is
            too good, and the seed counts in ``missed``.
        missed: seeds in which it is not reached.
        difference: of the best accuracies, this one's less the cold one's; the mean.
        start_seconds: of finding and transforming; the median.
        share: the same, by the seconds of all epochs; the mean.
    """

    faster: float
    missed: int
    difference: float
    start_seconds: float
    share: float


class Results:
    """All trainings."""

    def __init__(self, file: Path) -> None:
        rows: dict[tuple[str, str, int], list[dict[str, str]]] = {}
        seconds: dict[str, list[float]] = {}
        with file.open(newline="") as source:
            for row in csv.DictReader(source):
                key = row["architecture"], row["method"], int(row["seed"])
                rows.setdefault(key, []).append(row)
                seconds.setdefault(row["architecture"], []).append(float(row["seconds"]))
        self.epoch_seconds = {name: statistics.median(values) for name, values in seconds.items()}
        self.trainings = {key: _training(each) for key, each in rows.items()}
        self.architectures = list(dict.fromkeys(name for name, _, _ in rows))
        self.seeds = sorted({seed for _, _, seed in rows})

    def outcome(self, name: str, method: str) -> Outcome | None:
        """None if nothing of it was trained."""
        faster, missed, differences, shares = [], 0, [], []
        epoch, start = self.epoch_seconds[name], self._start_seconds(name, method)
        for seed in self.seeds:
            cold = self.trainings.get((name, "cold", seed))
            other = self.trainings.get((name, method, seed))
            if cold is None or other is None:
                continue
            target = max(cold.accuracy)
            epochs = other.epochs_to(target)
            missed += math.isinf(epochs)
            took = min(epochs, len(other.accuracy)) * epoch + start
            faster.append(cold.epochs_to(target) * epoch / took)
            differences.append(max(other.accuracy) - target)
            shares.append(start / (len(other.accuracy) * epoch))
        if not faster:
            return None
        mean = statistics.fmean
        return Outcome(mean(faster), missed, mean(differences), start, mean(shares))

    def _start_seconds(self, name: str, method: str) -> float:
        found = (self.trainings.get((name, method, seed)) for seed in self.seeds)
        return statistics.median([each.start_seconds for each in found if each] or [0.0])


def _training(rows: Sequence[Mapping[str, str]]) -> Training:
    first = rows[0]
    return Training(
        tuple(float(row["accuracy"]) for row in rows),
        first["parent"],
        float(first["score"]),
        float(first["carried"]),
        float(first["start_seconds"]),
    )


def summary(results: Results) -> str:
    """A row a method: means over the architectures."""
    lines = [
        "| start | time to the cold run's best accuracy, x faster (mean; geometric; median) | "
        "not reached | accuracy difference (mean) | query and transform, share of training |",
        "|---|---|---|---|---|",
    ]
    for method in WARM:
        found = [o for name in results.architectures if (o := results.outcome(name, method))]
        if not found:
            continue
        faster = [outcome.faster for outcome in found]
        number = sum((n, method, s) in results.trainings for n, s in _all(results))
        share = statistics.fmean(outcome.share for outcome in found)
        cost = f"{100 * share:.2f} %" if method == "warm" else ""
        lines.append(
            f"| {LABELS[method]} | {statistics.fmean(faster):.2f}; "
            f"{statistics.geometric_mean(faster):.2f}; {statistics.median(faster):.2f} | "
            f"{sum(outcome.missed for outcome in found)} of {number} | "
            f"{_points(statistics.fmean(outcome.difference for outcome in found))} | {cost} |"
        )
    return "\n".join(lines)


def _all(results: Results) -> Iterable[tuple[str, int]]:
    return ((name, seed) for name in results.architectures for seed in results.seeds)


def table(results: Results) -> str:
    """A row an architecture."""
    lines = [
        "| architecture | parent (seed 1) | score | carried | "
        + " | ".join(f"{LABELS[method]}" for method in WARM)
        + " | cold best | warm best | query and transform |",
        "|---" * (7 + len(WARM)) + "|",
    ]
    for name in results.architectures:
        warm = results.trainings.get((name, "warm", results.seeds[0]))
        if warm is None:
            continue
        cells = [name, warm.parent, f"{warm.score:.2f}", f"{100 * warm.carried:.0f} %"]
        for method in WARM:
            outcome = results.outcome(name, method)
            missed = f" ({outcome.missed} missed)" if outcome and outcome.missed else ""
            cells.append("" if outcome is None else f"{outcome.faster:.2f}{missed}")
        for method in ("cold", "warm"):
            best = [
                max(training.accuracy)
                for (other, kind, _), training in results.trainings.items()
                if (other, kind) == (name, method)
            ]
            cells.append(f"{statistics.fmean(best):.4f}")
        started = results.outcome(name, "warm")
        assert started is not None
        share = f"{100 * started.share:.1f} %"
        cells.append(f"{1000 * started.start_seconds:.0f} ms, {share}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict(results: Results) -> str:
    """Whether the goals are reached."""
    found = [o for name in results.architectures if (o := results.outcome(name, "warm"))]
    faster = statistics.fmean(outcome.faster for outcome in found)
    difference = statistics.fmean(outcome.difference for outcome in found)
    share = statistics.fmean(outcome.share for outcome in found)
    others = [
        outcome.faster
        for name in results.architectures
        if not name.startswith("vit") and (outcome := results.outcome(name, "warm"))
    ]
    without = "" if len(others) == len(found) else f"; without ViTs {statistics.fmean(others):.2f}"
    return (
        f"Warm starts reach the cold run's best accuracy {faster:.2f} times as fast on average "
        f"(goal: {GOAL:g}, {_said(faster >= GOAL)}{without}). The best accuracy differs by "
        f"{_points(difference)} (goal: no more than {100 * MOST_DIFFERENCE:g} points below, "
        f"{_said(difference >= -MOST_DIFFERENCE)}). Query and transform take "
        f"{100 * share:.2f} % of the training's time (goal: under {100 * MOST_SHARE:g} %, "
        f"{_said(share < MOST_SHARE)})."
    )


def _said(reached: bool) -> str:
    return "reached" if reached else "missed"


def _points(difference: float) -> str:
    return f"{100 * difference:+.2f} points"


def figure(results: Results) -> Figure:
    """How much faster each architecture is, and accuracy over epochs for one of each family."""
    families: dict[str, str] = {}
    for name in results.architectures:
        families.setdefault(name.partition("-")[0], name)
    made = Figure(figsize=(12, 8), layout="constrained")
    rows = made.subfigures(2, 1, height_ratios=(1.2, 1))
    axes = rows[0].subplots()
    for number, method in enumerate(WARM):
        outcomes = [results.outcome(name, method) for name in results.architectures]
        places = [at + (number - 1) * 0.27 for at in range(len(outcomes))]
        above = [0.0 if each is None else each.faster - 1 for each in outcomes]
        axes.bar(places, above, 0.25, bottom=1, label=LABELS[method], color=COLORS[method])
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axhline(GOAL, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(results.architectures)), results.architectures, rotation=40)
    axes.set_yscale("log")
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_ylabel("times as fast as cold")
    axes.set_title("time to the best accuracy of the cold training")
    axes.legend(frameon=False)
    below = rows[1].subplots(1, len(families), squeeze=False)[0]
    for plot, name in zip(below, families.values(), strict=True):
        for method in ("cold", *WARM):
            color = COLORS.get(method, "#000000")
            for seed in results.seeds:
                training = results.trainings.get((name, method, seed))
                if training is not None:
                    label = LABELS.get(method, method) if seed == results.seeds[0] else None
                    epochs = range(1, len(training.accuracy) + 1)
                    plot.plot(epochs, training.accuracy, color=color, linewidth=0.9, label=label)
        plot.set_title(name)
        plot.set_xlabel("epoch")
    below[0].set_ylabel("validation accuracy")
    below[-1].legend(frameon=False, fontsize="small")
    return made


def write_report(file: Path) -> str:
    """Writes results.md and the figure beside the file; returns the text."""
    results = Results(file)
    text = f"{summary(results)}\n\n{verdict(results)}\n\n{table(results)}\n"
    (file.parent / "results.md").write_text(text)
    write(figure(results), [file.parent / f"speedup.{ending}" for ending in ("png", "svg")])
    return text


if __name__ == "__main__":
    print(write_report(HERE / "results.csv"))
