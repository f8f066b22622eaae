"""expr/warm_start: architectures, a training of each kind, and tables of results."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.zoo.entry import Meta
from ooodist.zoo.zoo import Zoo
from tests.jobs import ROOT

FOLDER = ROOT / "expr/warm_start"
NAMES = ("tasks", "architectures", "train", "run", "report", "search")


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """The scripts of the folder, which import each other as scripts do."""
    others = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: __import__(name) for name in NAMES}
    finally:
        sys.path.remove(str(FOLDER))
        for name in NAMES:
            sys.modules.pop(name, None)
        sys.modules.update(others)


def test_there_are_as_many_as_the_claim_says(modules: dict[str, ModuleType]) -> None:
    zoo, held_out = modules["architectures"].ZOO, modules["architectures"].HELD_OUT
    assert len(set(zoo)) == len(zoo) >= 60
    assert len(set(held_out)) == len(held_out) == 20
    assert not set(zoo) & set(held_out)


@pytest.mark.parametrize(
    "name", ["mlp-40-3", "resnet-5-2", "mobilenet-5-2", "vit-20-2", "gpt-40-2"]
)
def test_nothing_is_unknown_in_a_model(modules: dict[str, ModuleType], name: str) -> None:
    graph = graph_of(modules["architectures"].build(name))
    assert not any(space.kind == "fixed" for space in graph.spaces)


def test_each_method_trains(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    tasks, train = modules["tasks"], modules["train"].train
    short = replace(tasks.TASKS["digits"], epochs=2, steps=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tasks.TASKS, "digits", short)
        model, rows = train("mlp-32-1", "cold", 100, str(tmp_path), kept=True)
        with Zoo(tmp_path) as zoo:
            zoo.add_model(model, Meta("mlp-32-1", short.task, "digits", metrics={"accuracy": 0.5}))
        first = {}
        for method in modules["train"].METHODS:
            _, found = train("mlp-40-2", method, 1, str(tmp_path))
            assert [row["epoch"] for row in found] == [1, 2]
            assert all(row["seconds"] > 0 for row in found)
            first[method] = found[0]
    assert rows[1]["accuracy"] > rows[0]["accuracy"]
    assert first["cold"]["parent"] == ""
    assert first["cold"]["carried"] == 0
    assert first["warm"]["parent"] == first["random_parent"]["parent"] == "mlp-32-1"
    assert first["warm"]["carried"] > 0.8
    assert first["same_shape"]["carried"] < 0.01  # only the head's bias
    assert first["warm"]["accuracy"] > first["cold"]["accuracy"]
    assert first["warm"]["start_seconds"] > 0


def write_results(file: Path, curves: dict[tuple[str, str, int], Sequence[float]]) -> None:
    with file.open("w", newline="") as content:
        writer = csv.writer(content)
        columns = ("architecture", "method", "seed", "epoch", "seconds", "accuracy")
        writer.writerow((*columns, "parent", "score", "carried", "start_seconds"))
        for (name, method, seed), accuracies in curves.items():
            for epoch, accuracy in enumerate(accuracies, 1):
                start = ("", 0, 0, 0) if method == "cold" else ("mlp-1", 0.7, 0.9, 0.5)
                writer.writerow([name, method, seed, epoch, 10.0, accuracy, *start])


COLD = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    file = tmp_path / "results.csv"
    curves: dict[tuple[str, str, int], Sequence[float]] = {}
    for seed in (1, 2):
        curves["mlp-2", "cold", seed] = COLD
        curves["mlp-2", "warm", seed] = [0.5, 0.6, 0.7, 0.81] + [0.7] * 6
        curves["mlp-2", "same_shape", seed] = COLD
        curves["mlp-2", "random_parent", seed] = [0.1] * 10
    write_results(file, curves)
    return file


def test_the_time_to_the_best_accuracy_counts(
    modules: dict[str, ModuleType], results: Path
) -> None:
    found = modules["report"].Results(results)
    warm = found.outcome("mlp-2", "warm")
    assert warm.faster == pytest.approx(80 / 40.5)
    assert warm.missed == 0
    assert warm.difference == pytest.approx(0.01)
    assert warm.share == pytest.approx(0.005)
    assert found.outcome("mlp-2", "same_shape").faster == pytest.approx(80 / 80.5)
    missed = found.outcome("mlp-2", "random_parent")
    assert missed.missed == 2
    assert missed.faster == pytest.approx(80 / 100.5)
    assert found.outcome("mlp-2", "nobody") is None


def test_the_report_says_whether_the_goals_are_reached(
    modules: dict[str, ModuleType], results: Path
) -> None:
    text = modules["report"].write_report(results)
    assert "1.98 times as fast on average (goal: 1.5, reached)" in text
    assert "differs by +1.00 points" in text
    assert "0.50 % of the training's time (goal: under 2 %, reached)" in text
    assert (
        "| mlp-2 | mlp-1 | 0.70 | 90 % | 1.98 | 0.99 | 0.80 (2 missed) | 0.8000 | 0.8100 |" in text
    )
    assert (results.parent / "results.md").read_text() == text
    assert "warm start" in (results.parent / "speedup.svg").read_text()


def test_rows_of_several_processes_are_appended(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    run = modules["run"]
    row = dict.fromkeys(run.COLUMNS, "1")
    run._append(tmp_path / "results.csv", [row, row])
    run._append(tmp_path / "results.csv", [row])
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert lines[0] == ",".join(run.COLUMNS)
    assert len(lines) == 4


def test_a_search_is_cold_or_from_a_zoo(
    modules: dict[str, ModuleType],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("optuna", reason="pip install optuna")
    search = modules["search"]
    constants = {"FILE": tmp_path / "search.csv", "TRIALS": 2, "EPOCHS": 1, "SEEDS": (1,)}
    for name, value in constants.items():
        monkeypatch.setattr(search, name, value)
    for start in search.STARTS:
        assert search.rows(1, start) == []
        search.search(1, start)
    cold, zoo, (longer,) = (search.rows(1, start) for start in search.STARTS)
    assert [row["model"] for row in cold] == [row["model"] for row in zoo]
    assert [row["epochs"] for row in cold] == ["1", "1"]
    assert [row["epochs"] for row in zoo] == ["1", "2"]
    assert longer["model"] == search.best(cold)["model"]
    assert longer["epochs"] == search.best(zoo)["epochs"]
    search.report()
    table = capsys.readouterr().out
    assert f"| 1 | cold | {float(search.best(cold)['accuracy']):.4f} |" in table
    assert "| 1 | longer |" in table
