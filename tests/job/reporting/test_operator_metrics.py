"""What operators watch is in a file that Prometheus can read."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ooodist import engines
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.job.reporting import operator_metrics
from ooodist.job.reporting.operator_metrics import WriteMetrics
from ooodist.job.reporting.speeds import Speeds
from ooodist.report.data_parallel.trace import TraceSummary
from ooodist.trainer.progress import StepTimer
from tests.job.test_run import run

LINE = re.compile(r"(ooodist_\w+)\{((?:\w+=\"(?:[^\"\\]|\\.)*\",?)+)\} (\S+)")


def values(file: Path) -> dict[str, float]:
    """Reads the file as Prometheus does; each value has its help and type above it."""
    found: dict[str, float] = {}
    said: dict[str, set[str]] = {}
    for line in file.read_text().splitlines():
        if line.startswith("# "):
            _, what, name, _ = line.split(" ", 3)
            said.setdefault(name, set()).add(what)
            continue
        match = LINE.fullmatch(line)
        assert match, line
        assert said[match[1]] == {"HELP", "TYPE"}
        label = re.search(r'name="(\w+)"', match[2])
        found[match[1].removeprefix("ooodist_") + (f" {label[1]}" if label else "")] = float(
            match[3]
        )
    return found


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engines.init("local")


def test_a_job_writes_it(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOODIST_RESTART", "2")
    file = tmp_path / "collector" / "job.prom"
    began = time.time()
    report = f"report={{tensorboard: false, metrics: {file}, trace: 2}}"
    run(engine, tmp_path / "out", "epochs=2", report)
    found = values(file)
    steps = found.pop("step")
    assert steps == 2 * (steps // 2) > 10
    assert (found["epoch"], found["epochs"], found["workers"]) == (2, 2, 1)
    assert found["restarts_total"] == 2
    assert found["steps_left_out_total"] == 0
    assert began < found["written_seconds"] < time.time()
    assert found["samples_per_second"] * found["step_seconds"] == pytest.approx(128)
    assert 0 < found["log loss"] < 10
    assert "log val_accuracy" in found
    assert found["exchange_seconds"] == 0  # one worker
    assert 'job="out",engine="local"' in file.read_text()
    assert [each.name for each in file.parent.iterdir()] == ["job.prom"]


def writer(file: Path, trace: Any = None, **labels: str) -> Any:
    totals = {"workers": 2, "epochs": 3, "steps_per_epoch": 10}
    made = WriteMetrics(file, Speeds(StepTimer(), 8, trace), labels=labels, **totals)
    watch = SimpleNamespace(num_skipped=4)
    made.set_model(SimpleNamespace(ooodist=SimpleNamespace(strategy=SimpleNamespace(watch=watch))))
    return made


def test_what_was_recorded_of_exchanges(tmp_path: Path) -> None:
    recorded = SimpleNamespace(summary=None)
    made = writer(tmp_path / "a.prom", trace=recorded, job="a")
    made.on_epoch_end(0, {})
    assert "exchange_seconds" not in values(tmp_path / "a.prom")
    recorded.summary = TraceSummary(tmp_path, 2, 0.5, exchange_seconds=0.2, hidden_share=0.75)
    made.on_epoch_end(1, {})
    found = values(tmp_path / "a.prom")
    assert (found["exchange_seconds"], found["exchange_hidden_share"]) == (0.2, 0.75)
    recorded.summary = TraceSummary(tmp_path, 2, 0.5, exchange_seconds=0.0, hidden_share=1.0)
    made.on_epoch_end(2, {})
    found = values(tmp_path / "a.prom")
    assert found["exchange_seconds"] == 0
    assert "exchange_hidden_share" not in found  # of nothing


def test_it_is_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(operator_metrics.time, "monotonic", lambda: now)
    made = writer(tmp_path / "a.prom", job="a")
    made.on_epoch_begin(1)
    for batch in range(10):
        made.on_train_batch_end(batch, {"loss": float(batch)})
        now += 1.0
    found = values(tmp_path / "a.prom")
    assert (found["step"], found["log loss"]) == (16, 5)  # the first one at once, then after 5 s
    assert "step_seconds" not in found  # not known yet
    made.on_epoch_end(1, {"loss": 0.5})
    assert values(tmp_path / "a.prom")["step"] == 20
    assert values(tmp_path / "a.prom")["steps_left_out_total"] == 4


def test_what_is_no_number_and_strange_names(tmp_path: Path) -> None:
    made = writer(tmp_path / "a.prom", job='a "b"\\\nc')
    made.on_epoch_end(0, {"nan": float("nan"), "inf": float("inf"), "less": -float("inf")})
    text = (tmp_path / "a.prom").read_text()
    assert 'job="a \\"b\\"\\\\\\nc",name="nan"} NaN' in text
    assert '"inf"} +Inf' in text
    assert '"less"} -Inf' in text
    assert len(values(tmp_path / "a.prom")) > 5


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"metrics is .*/file/a.prom, which cannot be written"):
        writer(tmp_path / "file" / "a.prom", job="a").on_epoch_end(0, {})
