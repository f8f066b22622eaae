"""Cells of the matrix of faults: a real job each, and when a bar counts as missed."""

from __future__ import annotations

import csv
import os
import random
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace

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


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    return load("faults", "soak")


def test_what_a_process_uses(soak: ModuleType) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        _, descriptors, threads = soak.usage(sleeper.pid)
        assert (descriptors >= 3, threads) == (True, 1)
        assert soak.usage(os.getpid())[0] > 30
    finally:
        sleeper.kill()
        sleeper.wait()
    assert soak.usage(sleeper.pid) is None


def test_growth_of_a_launcher_and_of_ranks_that_are_started_anew(soak: ModuleType) -> None:
    watch = soak.Watch(None)
    # It takes 100 MB at once and grows by 10 MB in the 300 s after it has settled.
    memory = [50.0] * 10 + [100.0 + second / 30 for second in range(0, 301, 5)]
    watch.seen[1] = (
        "launcher",
        [(5.0 * number, (used, 8, 2)) for number, used in enumerate(memory)],
    )
    grown, descriptors, threads = watch.growth("launcher")
    assert grown == pytest.approx((101.25, 108.75), abs=0.5)
    assert (descriptors, threads) == ((8, 8), (2, 2))
    # Six lives, each looked at once it has settled; the last two use more descriptors.
    for life in range(6):
        used = (300.0, 40 + 10 * (life >= 4), 30)
        looks = [(100 * life, (200.0, 10, 5)), (100 * life + 50, used), (100 * life + 90, used)]
        watch.seen[10 + life] = ("rank 0", looks)
    assert watch.growth("rank 0") == [(300, 300), (40, 50), (30, 30)]
    assert watch.growth("rank 1") == []


@pytest.mark.parametrize("engine", ["byteps", "mpi"])
def test_faults_are_of_what_the_engine_has(soak: ModuleType, engine: str) -> None:
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    names = {"server": 2, "scheduler": 3}
    job = SimpleNamespace(
        rank=lambda rank: sleepers[rank].pid, helper=lambda name: sleepers[names[name]].pid
    )
    try:
        chance = random.Random(1)
        struck = {soak.strike(job, engine, chance) for _ in range(200)}
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
    assert len(struck) == (8 if engine == "byteps" else 6)
    assert ("SIGKILL of the scheduler" in struck) == (engine == "byteps")
    assert soak.strike(SimpleNamespace(rank=lambda _: None), "mpi", chance) is None
