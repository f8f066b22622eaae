"""expr/pipe_par, weak scaling: what is compared, what is predicted, a short run, and the report."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from ooodist.planner.pipeline.named import zero_bubble
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.planner.pipeline.simulate import peak_bytes, simulate_pipeline
from tests.jobs import ROOT

FOLDER = ROOT / "expr/pipe_par"
Rows = Mapping[int, Mapping[str, PipelinePlan]]


@pytest.fixture(scope="module")
def weak_scaling() -> Iterator[ModuleType]:
    others = ("make_costs", "emulated", "emulated_rows", "emulated_report", "weak_scaling_report")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        for name in others:  # other folders have modules of these names
            patch.delitem(sys.modules, name, raising=False)
        spec = importlib.util.spec_from_file_location("weak_scaling", FOLDER / "weak_scaling.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "weak_scaling", module)  # for its dataclasses
        spec.loader.exec_module(module)
        yield module
        for name in others:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def rows(weak_scaling: ModuleType) -> Rows:
    """Of 8 devices, all of one host."""
    made: Rows = weak_scaling.make_rows(weak_scaling.Setting("nvlink", 8))
    return made


def test_models_grow_with_the_devices(weak_scaling: ModuleType) -> None:
    names = [setting.name for setting in weak_scaling.SETTINGS]
    assert len(set(names)) == len(names) == 7
    for setting in weak_scaling.SETTINGS:
        assert len(setting.layers.layers) == 3 * setting.devices  # 1.5 layers each, in halves


def test_only_what_is_measured_again_is_dropped(weak_scaling: ModuleType) -> None:
    setting = weak_scaling.Setting("hosts", 32)
    lines = [
        {"link": link, "devices": devices, "row": row}
        for link, devices in (("hosts", "32"), ("hosts", "24"), ("nvlink", "32"))
        for row in ("auto", "zb_h1", "gpipe")
    ]
    kept = [
        line for line in lines if weak_scaling.is_not_measured(setting, ["auto", "zb_h1"], line)
    ]
    assert kept == lines[2:]


def test_what_is_compared(weak_scaling: ModuleType, rows: Rows) -> None:
    assert set(rows[1]) <= set(weak_scaling.weak_scaling_report.ROWS)
    assert {"gpipe", "1f1b", "interleaved", "zb_h1", "fast_forward", "modulo"} <= set(rows[1])
    for replicas, plans in rows.items():
        for plan in plans.values():
            assert plan.schedule.ranks * replicas == 8
            assert plan.schedule.microbatches * replicas == 8  # a step is the same sentences
            assert all(bool(stage.exchange) == (replicas > 1) for stage in plan.costs.stages)
    peak = max(rows[1]["1f1b"].timeline.peak_bytes)
    assert max(rows[1]["auto_equal_memory"].timeline.peak_bytes) <= peak
    # 18 bytes for each of the weights of a half of the model, besides activations
    base = sum(stage.base_bytes for stage in rows[4]["1f1b"].costs.stages)
    assert base == 18 * 12 * (12 * 1024**2 + 13 * 1024)
    assert max(rows[4]["1f1b"].timeline.peak_bytes) > base / 2


@pytest.mark.parametrize(("link", "devices"), [("nvlink", 16), ("hosts", 8)])
def test_auto_is_not_behind_the_heuristic_of_zero_bubble(
    weak_scaling: ModuleType, link: str, devices: int
) -> None:
    """On these costs, with replicas and without; on others: tests/planner/pipeline."""
    setting = weak_scaling.Setting(link, devices)
    for replicas in (1, 4):
        costs, size = setting.costs(replicas), devices // replicas
        single = weak_scaling.make_plan(costs, size, size, "zb_h1").costs
        found = weak_scaling.make_plan(costs, size, size, "auto").timeline.step_seconds
        assert single.memory_limit is not None
        for schedule in zero_bubble.automatic(size, single):
            if max(peak_bytes(schedule, single)) <= single.memory_limit:
                theirs = simulate_pipeline(schedule, single).step_seconds
                assert found <= 1.002 * theirs, (replicas, schedule)


def test_replicas_on_other_hosts_share_their_link(weak_scaling: ModuleType) -> None:
    one_host, two = weak_scaling.Setting("nvlink", 16), weak_scaling.Setting("hosts", 16)
    links = two.costs(1).links
    assert links is not None
    assert {link.latency for row in links for link in row} == {10e-6, 30e-6}
    assert sum(links[at][at + 1].latency == 30e-6 for at in range(15)) == 1  # neighbors stay
    assert one_host.costs(2).links is None


def test_no_action_is_shorter_than_a_wait_for_a_core(weak_scaling: ModuleType, rows: Rows) -> None:
    for plans in rows.values():
        for plan in plans.values():
            shortest = min(stage.forward for stage in plan.costs.stages)
            assert shortest * weak_scaling.stretch_factor(plan) == pytest.approx(15e-3)
    lines = weak_scaling.predicted(rows).splitlines()
    assert len(lines) == sum(map(len, rows.values()))
    seconds = rows[1]["1f1b"].timeline.step_seconds
    assert f" 8 x 1 1f1b               {16 / seconds:6.0f} sentences/s" in lines[1]


def test_replicas_are_carried_out_and_reported(
    weak_scaling: ModuleType, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of four replicas, and 1F1B alone, which others are compared with."""
    monkeypatch.setattr(weak_scaling, "ACTION_SECONDS", 5e-3)
    setting, file = weak_scaling.Setting("nvlink", 8), tmp_path / "weak_scaling.csv"
    few = {1: {name: rows[1][name] for name in ("1f1b", "auto")}, 4: rows[4]}
    weak_scaling.keep_lines(file, weak_scaling.COLUMNS, lambda line: True)
    weak_scaling.add_lines(file, weak_scaling.COLUMNS, weak_scaling.measure(setting, few, 1))
    with file.open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    assert [(line["replicas"], line["row"]) for line in lines] == [
        *(("1", "1f1b"), ("1", "auto")),
        *(("4", "1f1b"), ("4", "auto")),
    ]
    for line in lines:
        assert 0.99 < float(line["seconds"]) / float(line["simulated"]) < 3  # on a busy machine
    weak_scaling.weak_scaling_report.write(file)
    text = (tmp_path / "weak_scaling_results.md").read_text(encoding="utf-8")
    assert "| NVLink-like | 8 | 2 x 4 | auto | " in text
    assert "NVLink-like, 8 devices | 0.2 % | 0.00% | met |" in text
    for suffix in ("png", "svg"):
        assert (tmp_path / f"weak_scaling.{suffix}").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("seconds", "auto", "error", "behind"),
    [(2.0, 1.0, "+0.0% (2 of 2", "0.00% | met"), (2.5, 2.006, "-20.0% (0 of 2", "0.30% | **miss")],
)
def test_the_report_says_which_goals_are_met(
    weak_scaling: ModuleType, tmp_path: Path, seconds: float, auto: float, error: str, behind: str
) -> None:
    file = tmp_path / "weak_scaling.csv"
    slower = seconds / 2.0
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, weak_scaling.COLUMNS)
        writer.writeheader()
        for row, simulated, factor in (("1f1b", 2.0, 10), ("auto", 2 * auto, 20)):
            writer.writerow(
                dict.fromkeys(weak_scaling.COLUMNS, 1)
                | {"link": "hosts", "devices": 16, "replicas": 1, "row": row, "factor": factor}
                | {"seconds": simulated * slower, "simulated": simulated, "placement": "in turn"}
            )
    weak_scaling.weak_scaling_report.write(file)
    text = (tmp_path / "weak_scaling_results.md").read_text(encoding="utf-8")
    assert f"| 3 % | {error} rows within 3 %) | " in text
    assert behind in text
    # 2 sentences a micro-batch, 16 of them, in 0.2 s of the devices, or as much longer
    line = f"1F1B | 1 | 160 | {160 / slower:.0f} | {1 / slower - 1:+.1%} | 1.00x |"
    assert line in text
