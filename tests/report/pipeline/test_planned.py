"""Planning pipelines: the text, and the files."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import Link, ModelCosts, read_model_costs
from ooodist.planner.pipeline.plan import make_plan
from ooodist.report.pipeline.outcomes import PipelineSubject, Setting
from ooodist.report.pipeline.planned import plan_pipelines
from tests.report.pipeline_examples import equal_layers

COSTS = equal_layers(8, 1e-3, update=1e-4, kept=10, base=7, limit=100)
NAMES = ("gpipe", "1f1b", "zb_h1", "zb_v")


def subject(costs: ModelCosts = COSTS, *microbatches: int) -> PipelineSubject:
    numbers = microbatches or (4, 8)
    batches = dict.fromkeys(numbers, 64)
    return PipelineSubject("eight layers", dict.fromkeys(numbers, costs), batches)


def check_pictures(folder: Path, *names: str) -> None:
    for name in names:
        with Image.open(folder / f"{name}.png") as image:
            image.load()
        ElementTree.parse(folder / f"{name}.svg")


def test_one_setting(tmp_path: Path) -> None:
    output = tmp_path / "new" / "folder"
    shown = plan_pipelines(subject(), [Setting(4, 8)], NAMES, output)
    _, table, _, best, grid, stages, files = shown.split("\n\n")
    assert [line.split()[0] for line in table.splitlines()[1:]] == list(NAMES)
    assert best.startswith("zb_v: ")
    assert "samples/s, " in best
    assert grid.startswith("rank 0 |F")
    assert [line.split()[:2] for line in stages.splitlines()[1:]] == [
        [str(stage), str(min(stage, 7 - stage))] for stage in range(8)
    ]
    names = [Path(line.split()[1]).name for line in files.splitlines()]
    assert sorted(names) == sorted(file.name for file in output.iterdir())
    assert files.splitlines()[0] == f"schedule {output}/schedule.csv"

    check_pictures(output, "timeline", "memory")
    with gzip.open(output / "timeline.json.gz") as file:
        events = json.load(file)["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == list(NAMES)
    with (output / "plans.csv").open(newline="") as stream:
        assert [row["schedule"] for row in csv.DictReader(stream)] == list(NAMES)
    text = "".join(ElementTree.parse(output / "timeline.svg").getroot().itertext())
    assert "does not fit" in text
    assert text.count("x 1f1b") == 3  # of all but itself


@pytest.mark.parametrize(("name", "seconds"), [("zb_h2", 3 * 8e-3), ("zb_h1", None)])
def test_what_a_step_takes_without_a_barrier(
    name: str, seconds: float | None, tmp_path: Path
) -> None:
    """It is said where it is less: ZB-H2 has no bubble then."""
    shown = plan_pipelines(subject(equal_layers(4, 1e-3)), [Setting(4, 8)], [name], tmp_path)
    lines = [line for line in shown.splitlines() if line.startswith("without a barrier")]
    assert [line.partition(" ms a step ")[0] for line in lines] == (
        [] if seconds is None else [f"without a barrier between steps: {seconds * 1e3:.1f}"]
    )


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb_v", "modulo", "auto"])
def test_what_was_planned_can_be_carried_out(name: str, tmp_path: Path) -> None:
    """From schedule.csv and costs.yaml comes the same plan again."""
    setting = Setting(2, 4)
    costs = equal_layers(5, 1e-3, kept=10, base=7, limit=150)
    plan_pipelines(subject(costs), [setting], [name], tmp_path)
    again = read_model_costs(tmp_path / "costs.yaml")
    assert again == costs
    made = make_plan(again, 2, 4, str(tmp_path / "schedule.csv"))
    expected = make_plan(costs, 2, 4, name)
    assert made.schedule.actions == expected.schedule.actions
    assert made.schedule.rank_of == expected.schedule.rank_of
    assert made.parts == expected.parts
    assert made.timeline == expected.timeline


def test_sweep(tmp_path: Path) -> None:
    settings = [Setting(1, 4), Setting(4, 4), Setting(4, 8)]
    shown = plan_pipelines(subject(), settings, NAMES, tmp_path)
    table, *_, files = shown.split("\n\n")[1:]
    titles = [line.split("  ")[0] for line in table.splitlines()[1:]]
    assert titles == [setting.title for setting in settings]
    check_pictures(tmp_path, "throughput")
    with (tmp_path / "plans.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == 3 * len(NAMES)
    for line in files.splitlines():
        assert Path(line.split()[1]).exists()
    written = {file.name for file in tmp_path.iterdir()}
    assert written == {"throughput.png", "throughput.svg", "plans.csv", "p4-m4", "p4-m8"}
    for setting in settings[1:]:  # a rank alone has not enough memory
        folder = tmp_path / setting.folder
        check_pictures(folder, "timeline", "memory")
        made = make_plan(
            read_model_costs(folder / "costs.yaml"),
            setting.ranks,
            setting.microbatches,
            str(folder / "schedule.csv"),
        )
        assert made.schedule.microbatches == setting.microbatches


def test_costs_may_differ_by_the_number_of_micro_batches(tmp_path: Path) -> None:
    costs = {4: equal_layers(4, 2e-3), 8: equal_layers(4, 1e-3)}
    plan_pipelines(PipelineSubject("x", costs), [Setting(4, 4), Setting(4, 8)], ["1f1b"], tmp_path)
    for number, each in costs.items():
        assert read_model_costs(tmp_path / f"p4-m{number}" / "costs.yaml") == each
    with (tmp_path / "plans.csv").open(newline="") as stream:
        seconds = [float(row["step_ms"]) for row in csv.DictReader(stream)]
    assert seconds == pytest.approx([2 * 3 * 7, 3 * 11])


def test_replicas(tmp_path: Path) -> None:
    """Each setting has its files, and its costs say how many replicas there are."""
    costs = equal_layers(4, 1e-3, link=Link(5e-4))
    sizes = [Setting(2, 4), Setting(2, 4, replicas=2), Setting(2, 4, replicas=4)]
    plan_pipelines(subject(costs, 4), sizes, ["1f1b", "zb_h1"], tmp_path)
    with (tmp_path / "plans.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["schedule"] == "zb_h1"]
    assert [row["replicas"] for row in rows] == ["1", "2", "4"]
    # Both stages of a ring exchange at the end: 2 (n - 1) trips of half a millisecond.
    assert [float(row["exposed_exchange_ms"]) for row in rows] == pytest.approx([0, 1, 3])
    for size, row in zip(sizes, rows, strict=True):
        throughput = size.replicas * 64e3 / float(row["step_ms"])
        assert float(row["throughput"]) == pytest.approx(throughput)
        again = read_model_costs(tmp_path / size.folder / "costs.yaml")
        assert again.replicas == size.replicas
        made = make_plan(again, 2, 4, "zb_h1")
        assert made.timeline.step_seconds * 1e3 == pytest.approx(float(row["step_ms"]))


def test_one_setting_with_replicas_shows_their_exchange(tmp_path: Path) -> None:
    costs = equal_layers(2, 1.0, link=Link(0.5))
    shown = plan_pipelines(subject(costs, 4), [Setting(2, 4, replicas=2)], ["zb_h1"], tmp_path)
    assert "exchange exposed 1000.0 ms" in shown
    assert "exchange |" in shown
    with gzip.open(tmp_path / "timeline.json.gz") as file:
        events = json.load(file)["traceEvents"]
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"exchange of rank 0", "exchange of rank 1"} <= tracks


def test_files_of_an_earlier_planning_are_replaced(tmp_path: Path) -> None:
    for name in ("gpipe", "1f1b"):
        plan_pipelines(subject(equal_layers(4)), [Setting(4, 8)], [name], tmp_path)
    text = (tmp_path / "schedule.csv").read_text()
    assert text.splitlines()[3].startswith("3F0,3B0,3F1")


def test_nothing_can_be_used(tmp_path: Path) -> None:
    costs = equal_layers(8, kept=10, limit=5)
    with pytest.raises(
        UserError, match=r"none of 1f1b, auto can be used for .*; auto: schedule auto: a memory"
    ):
        plan_pipelines(subject(costs), [Setting(2, 4), Setting(4, 8)], ["1f1b", "auto"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_can_be_written() -> None:
    with pytest.raises(UserError, match="--output is /dev/null/x, where nothing can be written"):
        plan_pipelines(subject(), [Setting(4, 8)], ["1f1b"], Path("/dev/null/x"))
