"""expr/data_par: what a worker answers, what becomes of measured times, and the table of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.expr.scripts import load
from tests.jobs import ENGINES, ROOT, needs_built, run_job
from tests.planner.chains import chain_costs

FOLDER = ROOT / "expr/data_par"


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "launch")
        patch.syspath_prepend(FOLDER)
        # Others are called run and report as well.
        yield {name: load("data_par", name) for name in ("run", "report")}


def test_costs_at_another_speed_keep_their_shares(scripts: dict[str, ModuleType]) -> None:
    costs = chain_costs([1000] * 3, forward=1.0, output_gradient=2.0, weight_gradient=3.0)
    slower = scripts["run"].scaled(costs, 1.5)
    assert slower.compute_seconds == pytest.approx(1.5 * costs.compute_seconds)
    assert [unit.seconds for unit in slower.backward] == pytest.approx(
        [1.5 * unit.seconds for unit in costs.backward]
    )
    assert slower.weights[0].num_bytes == costs.weights[0].num_bytes
    step = costs.compute_seconds + costs.launch_seconds
    at_speed = scripts["run"].at_speed(costs, 7.0)
    assert at_speed.compute_seconds + at_speed.launch_seconds == pytest.approx(7.0)
    assert at_speed.compute_seconds == pytest.approx(7.0 * costs.compute_seconds / step)


def test_what_a_job_was_started_with_is_not_planned(scripts: dict[str, ModuleType]) -> None:
    limits = scripts["run"].limits
    assert limits("horovod", for_plans=True).credits == (1, 2)
    assert limits("byteps", for_plans=False).credits == (None,)
    assert limits("byteps", for_plans=True).credits == (2,)
    assert limits("byteps", for_plans=True).partitions == (1 << 20,)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_row_runs_in_one_job(engine: str, scripts: dict[str, ModuleType]) -> None:
    for ratio in (0.5, 1):
        jobs = scripts["run"].jobs_of(engine, ratio)
        names = [row for _, those in jobs.values() for row in those]
        assert len(names) == len(set(names))
        assert set(scripts["report"].ROWS) - set(names) <= {"late_pull"}
        assert ("late_pull" in names) == ((engine, ratio) == ("byteps", 1))
        without = scripts["run"].jobs_of(engine, ratio, late_pull=False)
        assert {name: jobs[name] for name in jobs if name != "late_pull"} == without


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_times_what_it_is_asked_for(engine: str, tmp_path: Path) -> None:
    needs_built(engine)
    job = tmp_path / "job.yaml"
    job.write_text("model: {name: mlp}\ndata: {name: digits}\n", encoding="utf-8")
    asked: list[dict[str, object]] = [
        {"do": "ready"},
        {"do": "compute"},
        {"do": "run", "name": "computing", "launches": 2},
        {"do": "trace", "name": "baseline", "plan": None},
        {"do": "run", "name": "baseline", "launches": 2},
        {"do": "end"},
    ]
    for number, command in enumerate(asked):
        (tmp_path / f"{number}.json").write_text(json.dumps(command), encoding="utf-8")
    done = run_job(engine, 2, FOLDER / "worker.py", str(job), str(tmp_path), "16")
    assert done.returncode == 0, done.stdout
    answers = [
        json.loads((tmp_path / f"{number}.answer.json").read_text(encoding="utf-8"))
        for number in range(len(asked) - 1)
    ]
    assert {unit["kind"] for unit in answers[1]["costs"]["forward"]} == {"F"}
    assert all(0 < answers[number]["seconds"] < 60 for number in (2, 3, 4))


def rows(scripts: dict[str, ModuleType], file: Path, **setting: object) -> None:
    """Three repeats of each row; but for planned, all are as baseline."""
    values = {
        **dict.fromkeys(scripts["report"].ROWS, ([2.0, 2.2, 2.1], 2.1, 2.1)),
        "planned": ([1.4, 1.6, 1.5], 1.2, 1.5),
    }
    scripts["run"].write(
        file,
        [
            dict.fromkeys(scripts["run"].COLUMNS, 1)
            | {
                "model": "vgg16",
                "engine": "horovod",
                "workers": 2,
                "batch": 30,
                "processor": "a CPU",
                "row": row,
                "repeat": repeat,
                "seconds": took,
                "predicted": predicted,
                "predicted_then": then,
                "lower_bound": 1.2,
                "compute": 1.0,
                "exchange": 1.5,
                "exchange_cpu": 0.05,
            }
            | setting
            for row, (seconds, predicted, then) in values.items()
            for repeat, took in enumerate(seconds)
        ],
    )


def test_what_is_measured_again_takes_the_place_of_what_was_there(
    scripts: dict[str, ModuleType], tmp_path: Path
) -> None:
    file = tmp_path / "results.csv"
    rows(scripts, file)
    rows(scripts, file, ratio=2)
    rows(scripts, file, batch=60)
    found = scripts["report"].read(file)
    assert {setting[3]: those["planned"].batch for setting, those in found.items()} == {
        1: 60,
        2: 30,
    }
    assert all(len(those["planned"].seconds) == 3 for those in found.values())
    assert list(tmp_path.iterdir()) == [file]


def test_the_table_says_medians_speed_up_and_errors(
    scripts: dict[str, ModuleType], tmp_path: Path
) -> None:
    file = tmp_path / "results.csv"
    rows(scripts, file)
    found = scripts["report"].read(file)
    planned = found["vgg16", "horovod", 2, 1.0]["planned"]
    assert planned.median == 1.5
    assert planned.spread == pytest.approx((1.45, 1.55))
    assert planned.error == pytest.approx(-0.2)
    assert planned.error_then == pytest.approx(0.0)
    line = scripts["report"].table(found).splitlines()[-2]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:2] == ["vgg16", "horovod x 2"]
    assert cells[5:] == [
        *("1500 (1450 to 1550)", "40.0", "1.40x", "1200", "-20.0%", "+0.0%", "80%", "5%")
    ]


def test_the_summary_says_speed_ups(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    rows(scripts, file, ratio=0.5)
    lines = scripts["report"].summary(scripts["report"].read(file)).splitlines()
    assert lines[0].split(" | ")[2:7] == [
        *("barrier removed only", "reverse first-k only", "priority", "planned"),
        "planned, one step a call, carried",
    ]
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == [
        *("vgg16, horovod x 2", "0.5", "1.00x", "1.00x", "1.00x", "1.40x", "1.00x"),
        *("80%", "-20.0%", "A"),
    ]
    assert lines[3:] == ["", "Machine A: a CPU."]
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    found = scripts["report"].read(file)
    for those in found.values():
        del those["carried"]  # measured before there was such a row
    assert scripts["report"].summary(found).splitlines()[2] == lines[2].replace(
        "| 1.40x | 1.00x |", "| 1.40x | - |"
    )


def test_the_figure_is_written(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    rows(scripts, file)
    scripts["report"].draw(scripts["report"].read(file), tmp_path / "speedup")
    assert (tmp_path / "speedup.png").stat().st_size > 5000
    assert "<svg" in (tmp_path / "speedup.svg").read_text(encoding="utf-8")[:1000]
