"""The tables and the figures of results.csv: ``python expr/elastic/accuracy.py --report``.

Accuracy jumps from epoch to epoch, so the median of an epoch and the two before it is what counts.
The target of a seed is the accuracy at the end of its full training, less one percentage point.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from curves import Curve, accuracy_over_time
from scipy import stats

from ooodist.report.picture import write

BELOW = 0.01  # full training's final accuracy
LAST = 5  # epochs, of which the final accuracy is the median
SMOOTHED = 3  # epochs
GOAL = 0.6  # of full training's time to the target

HEADER = (
    *("method", "time to target", "of full training's", "seeds that reach it", "final accuracy"),
    *("measured rho", "selections (changes)", "time of selecting", "set-up"),
)

EQUAL_HEADER = (
    *("method", "accuracy", "less full training's, points (95 % interval)"),
    *("time of full training's, with the set-up", "without", "a step", "seeds"),
)


@dataclass(frozen=True)
class Training:
    """One method with one seed.

    Attributes:
        seconds: until the end of each epoch.
        accuracy: then, smoothed.
        step_seconds: the median.
        setup_seconds: before the first step.
        renewals: selections, of which ``changes`` were others than before.
        renewal_seconds: of all selections together; part of ``seconds``.
    """

    seconds: tuple[float, ...]
    accuracy: tuple[float, ...]
    step_seconds: float
    setup_seconds: float
    renewals: int
    changes: int
    renewal_seconds: float

    @property
    def final(self) -> float:
        """The accuracy at the end."""
        return statistics.median(self.accuracy[-LAST:])

    @property
    def whole_seconds(self) -> float:
        """Until the end, with the set-up."""
        return self.setup_seconds + self.seconds[-1]

    def seconds_to(self, target: float) -> float:
        """Until this accuracy is reached; infinite if it is not."""
        pairs = zip(self.seconds, self.accuracy, strict=True)
        return next((seconds for seconds, accuracy in pairs if accuracy >= target), math.inf)


# of a task: method -> seed -> training
Trainings = Mapping[str, Mapping[int, Training]]


def read(file: Path) -> dict[str, Trainings]:
    """The trainings of each task."""
    rows: dict[tuple[str, str, int], list[dict[str, str]]] = {}
    with file.open(newline="") as source:
        for row in csv.DictReader(source):
            rows.setdefault((row["task"], row["method"], int(row["seed"])), []).append(row)
    found: dict[str, dict[str, dict[int, Training]]] = {}
    for (task, method, seed), of_training in rows.items():
        found.setdefault(task, {}).setdefault(method, {})[seed] = _training(of_training)
    return dict(found)


def _training(rows: Sequence[Mapping[str, str]]) -> Training:
    accuracy = [float(row["accuracy"]) for row in rows]
    return Training(
        seconds=tuple(float(row["seconds"]) for row in rows),
        accuracy=tuple(
            statistics.median(accuracy[max(0, end - SMOOTHED) : end])
            for end in range(1, len(accuracy) + 1)
        ),
        step_seconds=statistics.median(float(row["step_seconds"]) for row in rows),
        setup_seconds=float(rows[0]["setup_seconds"]),
        renewals=int(rows[0]["renewals"]),
        changes=int(rows[0]["changes"]),
        renewal_seconds=float(rows[0]["renewal_seconds"]),
    )


def targets(trainings: Trainings) -> dict[int, float]:
    """The accuracy to reach, of each seed."""
    return {seed: full.final - BELOW for seed, full in trainings["full"].items()}


def ratio(trainings: Trainings, method: str) -> float:
    """Time to the target, of that of full training: the median over the seeds; may be infinite."""
    return _median(
        trainings[method][seed].seconds_to(target) / trainings["full"][seed].seconds_to(target)
        for seed, target in targets(trainings).items()
        if seed in trainings[method]
    )


def table(trainings: Trainings) -> str:
    """A row a method, medians over the seeds."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    goals = targets(trainings)
    for method, seeds in trainings.items():
        chosen = {seed: seeds[seed] for seed in goals if seed in seeds}
        times = [training.seconds_to(goals[seed]) for seed, training in chosen.items()]
        full = trainings["full"]
        of_full = ratio(trainings, method)
        rho = _median(t.step_seconds / full[seed].step_seconds for seed, t in chosen.items())
        cells = [
            method,
            _seconds(_median(times)),
            "" if math.isinf(of_full) else f"{of_full:.2f}",
            f"{sum(map(math.isfinite, times))} of {len(times)}",
            f"{_median(training.final for training in chosen.values()):.4f}",
            f"{rho:.2f}",
            f"{_median(t.renewals for t in chosen.values()):g} "
            f"({_median(t.changes for t in chosen.values()):g})",
            f"{_median(t.renewal_seconds for t in chosen.values()):.1f} s",
            f"{_median(t.setup_seconds for t in chosen.values()):.1f} s",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict(trainings: Trainings) -> str:
    """Whether importance reaches the goal."""
    found = {method: ratio(trainings, method) for method in trainings}
    ours = found.pop("importance")
    found.pop("full")
    if math.isinf(ours):
        return "Importance does not reach the target."
    said = (
        f"Importance reaches the target in {ours:.2f} of the time of full training (goal: {GOAL:g}"
        f", {'reached' if ours <= GOAL else 'missed'})."
    )
    if not found:
        return said
    best = min(found, key=lambda method: found[method])
    told = f"takes {found[best]:.2f}" if math.isfinite(found[best]) else "does not reach it"
    better = "better" if ours < found[best] else "not better"
    return f"{said} The best other selection, {best}, {told}: importance is {better}."


def write_report(file: Path) -> str:
    """Writes results.md and a figure a task beside the file; returns the text."""
    parts = []
    for task, trainings in read(file).items():
        parts.append(f"## {task}\n\n{table(trainings)}")
        if "importance" in trainings:
            parts.append(verdict(trainings))
        curves = {
            method: [Curve(t.seconds, t.accuracy) for t in seeds.values()]
            for method, seeds in trainings.items()
        }
        target = _median(targets(trainings).values())
        figure = accuracy_over_time(curves, target, title=task)
        write(figure, [file.parent / f"{task}.{ending}" for ending in ("png", "svg")])
    text = "\n\n".join(parts) + "\n"
    (file.parent / "results.md").write_text(text)
    return text


def write_equal_report(file: Path) -> str:
    """Writes equal.md beside the file, of trainings of as many epochs; returns the text."""
    found = read(file).items()
    text = "\n\n".join(f"## {task}\n\n{equal_table(each)}" for task, each in found) + "\n"
    file.with_suffix(".md").write_text(text)
    return text


def equal_table(trainings: Trainings) -> str:
    """A row a method: accuracy and time at the end, beside those of full training.

    The 95 % interval is Student's, of the seeds' differences. Times have the set-up, too.
    """
    lines = ["| " + " | ".join(EQUAL_HEADER) + " |", "|---" * len(EQUAL_HEADER) + "|"]
    full = trainings["full"]
    for method, seeds in trainings.items():
        own = {seed: training for seed, training in seeds.items() if seed in full}
        shares = [t.whole_seconds / full[seed].whole_seconds for seed, t in own.items()]
        without = [t.seconds[-1] / full[seed].seconds[-1] for seed, t in own.items()]
        cells = [
            f"{statistics.mean(100 * t.final for t in own.values()):.2f} %",
            _interval([100 * (t.final - full[seed].final) for seed, t in own.items()]),
            f"{_median(shares):.2f}",
            f"{_median(without):.2f}",
            f"{_median(t.step_seconds / full[seed].step_seconds for seed, t in own.items()):.2f}",
            str(len(own)),
        ]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(differences: Sequence[float]) -> str:
    if len(differences) < 2 or not any(differences):
        return ""
    low, high = stats.ttest_1samp(differences, 0).confidence_interval()
    return f"{statistics.mean(differences):+.2f} ({low:+.2f} to {high:+.2f})"


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _seconds(value: float) -> str:
    return "not reached" if math.isinf(value) else f"{value:.1f} s"
