"""expr/elastic: what becomes of measured times and accuracies in the tables."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.expr.scripts import load

report, step_time = load("elastic", "report"), load("elastic", "step_time")


def write_results(file: Path, curves: dict[tuple[str, int], Sequence[float]]) -> None:
    """A training of each method and seed; an epoch of full training takes 10 s, of others 5 s."""
    with file.open("w", newline="") as content:
        columns = ("task", "method", "seed", "epoch", "seconds", "accuracy", "step_seconds")
        columns += ("setup_seconds", "renewals", "changes", "renewal_seconds")
        writer = csv.writer(content)
        writer.writerow(columns)
        for (method, seed), accuracies in curves.items():
            epoch_seconds = 10 if method == "full" else 5
            for number, accuracy in enumerate(accuracies, 1):
                seconds = number * epoch_seconds
                row = ("task", method, seed, number, seconds, accuracy, epoch_seconds / 100)
                writer.writerow([*row, 3.0, 4, 1, 0.5])


RISING = [0.1, 0.3, 0.5, 0.7, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    file = tmp_path / "results.csv"
    never = [0.2] * 10
    write_results(
        file,
        {
            (method, seed): never if method == "head" else RISING
            for method in ("full", "importance", "head")
            for seed in (1, 2, 3)
        },
    )
    return file


def test_an_accuracy_is_the_median_of_three_epochs(results: Path) -> None:
    training = report.read(results)["task"]["full"][1]
    assert training.accuracy[:6] == pytest.approx((0.1, 0.2, 0.3, 0.5, 0.7, 0.9))
    assert training.final == pytest.approx(0.9)


def test_the_time_to_the_target_counts(results: Path) -> None:
    trainings = report.read(results)["task"]
    assert report.targets(trainings) == pytest.approx({1: 0.89, 2: 0.89, 3: 0.89})
    assert trainings["full"][1].seconds_to(0.89) == 60
    assert report.ratio(trainings, "importance") == pytest.approx(0.5)
    assert math.isinf(report.ratio(trainings, "head"))


def test_the_report_says_whether_the_goal_is_reached(results: Path) -> None:
    text = report.write_report(results)
    assert "0.50 of the time of full training (goal: 0.6, reached)" in text
    assert "| head | not reached |" in text
    assert (results.parent / "results.md").read_text() == text
    assert (results.parent / "task.svg").read_text().count("importance")


def test_rows_of_the_same_setting_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "step_time.csv"
    row = dict.fromkeys(step_time.FIELDS, "1") | {"model": "vit", "network": "none"}
    step_time.add(file, [row | {"rho": 0.4}, row | {"rho": 0.5, "error": "+0.020"}])
    step_time.add(file, [row | {"rho": 0.4, "error": "-0.050"}])
    rows = step_time.read(file)
    assert [(each["rho"], each["error"]) for each in rows] == [("0.4", "-0.050"), ("0.5", "+0.020")]
    lines = step_time.table(rows).splitlines()
    assert lines[2].endswith("| 0.950 |")
    assert lines[3].endswith("| 1.020 |")
