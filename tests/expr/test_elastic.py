"""expr/elastic: what becomes of measured times and accuracies in the tables."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.expr.scripts import load

curves, report, step_time = (load("elastic", name) for name in ("curves", "report", "step_time"))
Curve = curves.Curve


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


def test_equal_epochs_are_compared_seed_by_seed(results: Path) -> None:
    """Each training has a set-up of 3 s; full training takes 103 s with it, importance 53 s."""
    text = report.write_equal_report(results)
    assert "| importance | 90.00 % |  | 0.51 | 0.50 | 0.50 | 3 |" in text
    assert "| head | 20.00 % |" in text
    assert (results.parent / "results.md").read_text() == text


def test_the_interval_is_that_of_pairs() -> None:
    found = report._interval([-1.0, 0.0, 1.0, 2.0, 3.0])
    assert found == "+1.00 (-0.96 to +2.96)"  # 2.776 standard errors of 0.707


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


CURVES = {
    "full": [Curve((1, 2, 3), (0.1, 0.5, 0.9)), Curve((2, 4, 6), (0.3, 0.7, 0.7))],
    "head": [Curve((1, 2), (0.2, 0.4))],
}


def test_the_median_is_taken_epoch_by_epoch() -> None:
    assert curves.median_curve(CURVES["full"]) == Curve(
        (1.5, 3, 4.5), pytest.approx((0.2, 0.6, 0.8))
    )


def test_a_training_that_ended_sooner_ends_the_median() -> None:
    assert curves.median_curve([Curve((1, 2), (0.1, 0.2)), Curve((3,), (0.3,))]).seconds == (2,)


def test_a_thin_line_a_seed_and_a_thick_one_for_the_median() -> None:
    axes = curves.accuracy_over_time(CURVES, 0.8, title="digits").axes[0]
    lines, (target,) = axes.lines[:-1], axes.lines[-1:]
    full, head = lines[:3], lines[3:]
    assert [list(line.get_xdata()) for line in full] == [[1, 2, 3], [2, 4, 6], [1.5, 3, 4.5]]
    assert [list(line.get_ydata()) for line in head] == [[0.2, 0.4]] * 2
    for thin, thick in ((full[0], full[-1]), (head[0], head[-1])):
        assert thin.get_linewidth() < thick.get_linewidth()
    assert len({line.get_color() for line in full}) == 1
    assert full[0].get_color() != head[0].get_color()
    assert set(target.get_ydata()) == {0.8}
    assert "target 0.800" in [text.get_text() for text in axes.texts]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["full", "head"]
    assert axes.get_title(loc="left") == "digits"
    assert axes.get_xlabel() == "time of training (s)"


def test_without_a_target_there_is_no_line() -> None:
    axes = curves.accuracy_over_time({"head": CURVES["head"]}, None).axes[0]
    assert len(axes.lines) == 2
    assert not axes.texts
