"""Cells of the matrix of faults: a real job each, and when a bar counts as missed."""

from __future__ import annotations

import csv
from pathlib import Path
from types import ModuleType

import pytest

from tests.expr.scripts import load

GOOD = {"left": "nothing", "weights": "same"}


@pytest.fixture(scope="module")
def run() -> ModuleType:
    return load("faults", "run")


def test_a_cell(run: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "results.csv"
    run.main(["--faults", "raise", "--engines", "collective", "--out", str(results)])
    with results.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["fault"], row["engine"]) == ("raise", "collective")
    assert row["code"] == "2"
    assert row["held"] == "yes", row
    assert row["left"] == "nothing"
    assert "rank 1: data function: a batch cannot be read: ValueError" in row["message"]


@pytest.mark.parametrize(
    ("code", "seconds", "message", "row", "missed"),
    [
        (137, 1.0, "worker 1 was killed", GOOD, []),
        (0, 1.0, "worker 1 was killed", GOOD, ["code 0 instead of 137"]),
        (137, 2.5, "worker 1 was killed", GOOD, ["more than 2 s"]),
        (137, 1.0, "somebody was killed", GOOD, ["no message names 1"]),
        (137, 1.0, "worker 1", {**GOOD, "left": "/dev/shm/x"}, ["something is left"]),
        (137, 1.0, "worker 1", {**GOOD, "weights": "others"}, ["other weights"]),
        (None, 1.0, "worker 1", GOOD, ["it still ran after 120 s"]),
    ],
)
def test_what_is_missed(
    run: ModuleType,
    code: int | None,
    seconds: float,
    message: str,
    row: dict[str, object],
    missed: list[str],
) -> None:
    assert run.misses(run.FAULTS["kill"], code, seconds, [message], row) == missed


def test_a_damaged_checkpoint_may_be_passed_over(run: ModuleType) -> None:
    cut = run.FAULTS["cut"]
    assert run.misses(cut, 0, 9.0, ["checkpoint-epoch-1 is damaged"], GOOD) == []
    assert run.misses(cut, 0, 9.0, [], GOOD) == ["no message names checkpoint-"]


def test_rows_replace_those_of_the_same_cell_and_keep_the_order(
    run: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "results.csv"
    for fault, engine, seconds in (("stop", "mpi", 9), ("kill", "mpi", 1), ("stop", "mpi", 5)):
        run.add(path, {"fault": fault, "engine": engine, "seconds": seconds})
    with path.open(newline="") as file:
        rows = [(row["fault"], row["seconds"]) for row in csv.DictReader(file)]
    assert rows == [("kill", "1"), ("stop", "5")]


def test_the_published_rows_are_of_cells_that_exist(run: ModuleType) -> None:
    with (run.HERE / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [(row["fault"], row["engine"]) for row in rows]
    assert len(set(cells)) == len(cells) > 0
    assert all(engine in run.FAULTS[fault].engines for fault, engine in cells)
    assert all((row["held"] == "yes") == (not row["missed"]) for row in rows)


def test_only_a_job_with_the_mark_is_searched(run: ModuleType, tmp_path: Path) -> None:
    job = run.Job("collective", tmp_path)
    assert job.processes() == {}
    assert job.rank(1) is None
    assert job.left() == []


def test_the_published_table_is_that_of_the_rows(run: ModuleType, tmp_path: Path) -> None:
    copy = tmp_path / "results.csv"
    copy.write_bytes((run.HERE / "results.csv").read_bytes())
    report = load("faults", "report")
    report.main(copy)
    table = copy.with_suffix(".md").read_text()
    assert table == (run.HERE / "results.md").read_text()
    assert len(table.splitlines()) == len(run.FAULTS) + 2
    missed = {"fault": "kill", "engine": "mpi", "seconds": "9", "code": "1", "held": "no"}
    assert "**9 s, code 1: more than 2 s**" in report.table([missed | {"missed": "more than 2 s"}])
