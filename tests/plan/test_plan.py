"""python -m ooodist.plan, as people start it."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from ooodist.plan import __main__ as program
from ooodist.planner.costs import SavedTensor, StepCosts
from ooodist.planner.data_parallel import plan as plans
from ooodist.util import yaml_dataclass
from tests.fork_server import fast_python
from tests.jobs import ROOT
from tests.plan.program import planned, table_rows
from tests.planner.chains import chain_costs

HOSTS = ["--hosts", "2", "--bandwidth", "1Gbit"]
CLUSTER = ["--workers", "4", "--bandwidth", "1Gbit"]
SMALL_JOB = """\
model: {name: mlp, layers: [32, 16]}
data: {name: digits}
batch: 32
epochs: 1
steps_per_epoch: 40
report: {tensorboard: false, trace: 4}
"""


def small_costs() -> StepCosts:
    """Four equal layers that take 8 ms to compute and about as long to exchange at 1 Gbit/s."""
    costs = chain_costs(
        [170_000] * 4, forward=5e-4, output_gradient=5e-4, weight_gradient=1e-3, update=1e-5
    )
    kept = SavedTensor(1 << 20, "F2", ("W2",))
    return StepCosts(
        costs.forward, costs.backward, costs.weights, (kept,), trace_seconds=0.1, base_bytes=1 << 20
    )


@pytest.fixture
def costs_file(tmp_path: Path) -> Path:
    file = tmp_path / "four_layers.yaml"
    file.write_text(yaml_dataclass.dump(small_costs()))
    return file


def run(
    *arguments: str, engine: str | None = None, program: str = "ooodist.plan"
) -> subprocess.CompletedProcess[str]:
    launcher = []
    if engine is not None:
        launcher = [sys.executable, "launch/local.py", "-np", "2", "--engine", engine]
        launcher += ["--timeout", "150", "--"]
    return subprocess.run(
        [*launcher, fast_python(), "-m", program, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )


def errors(output: str) -> list[str]:
    return [line for line in output.splitlines() if "ooodist: error: " in line]


def check_files(folder: Path, *more: str) -> plans.Plan:
    """The plan of a folder in which all files of a planning must be, and be whole."""
    with Image.open(folder / "timeline.png") as image:
        image.load()
    ElementTree.parse(folder / "timeline.svg")
    with gzip.open(folder / "timeline.json.gz") as file:
        events = json.load(file)["traceEvents"]
    tracks = {e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")}
    assert tracks == {"baseline", "planned", "compute", "exchange", *more}
    assert {e["name"] for e in events if e["ph"] == "C"} == {"memory"}
    assert any(e["ph"] == "f" for e in events)  # an arrow's end
    return plans.read(folder / "plan.yaml")


def test_costs_of_a_file_on_a_described_cluster(costs_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    *lines, imported = planned(
        *("--costs", str(costs_file), *CLUSTER),
        *("--latency", "10us", "--engine", "byteps", "--servers", "2", "--memory", "3MiB"),
        *("--steps-per-execution", "3", "--output", str(output)),
        timeout=100,
    )
    assert imported == "False"
    assert "four_layers on 4 workers, 2 servers, byteps, 1Gbit, 10us" in "\n".join(lines)
    for name in (
        "engine as it comes",
        "engine tuned",
        "barrier removed",
        "first k (k =",
        "priority",
        "planned",
        "lower bound",
    ):
        assert f"\n{name}" in "\n".join(lines)
    assert "\nplanned: " in "\n".join(lines)
    drawn = [line for line in lines if line.startswith(("compute ", "push and pull "))]
    assert [line.partition("|")[2][:2] for line in drawn] == ["FF", ".."]
    plan = check_files(output)
    assert (plan.name, plan.engine, plan.workers, plan.model) == ("planned", "byteps", 4, "")
    assert plan.steps_per_execution <= 3
    rows = {row["plan"]: row for row in table_rows(output)}
    assert list(rows) == [
        *("baseline", "tuned", "barrier_removed", "first_k", "priority", "planned", "lower_bound")
    ]
    assert plan.predicted is not None
    assert float(rows["planned"]["step_ms"]) == pytest.approx(
        plan.predicted.step_seconds * 1e3, abs=1e-3
    )
    best = min(float(row["step_ms"]) for name, row in rows.items() if name != "lower_bound")
    assert float(rows["planned"]["step_ms"]) == best
    assert int(rows["planned"]["peak_bytes"]) <= 3 << 20
    # What it has planned with can be planned with again.
    assert yaml_dataclass.read_file(StepCosts, output / "costs.yaml", "costs") == small_costs()


def test_what_may_be_carried_has_a_row(costs_file: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out"
    arguments = ["--carried", "--steps-per-execution", "1", "--output", str(output)]
    assert program.main(["--costs", str(costs_file), *CLUSTER, *arguments]) == 0
    assert "\nplanned, carrying " in capsys.readouterr().out
    rows = {row["plan"]: row for row in table_rows(output)}
    assert list(rows)[-3:] == ["planned", "carried", "lower_bound"]
    bound, carried, planned = (
        float(rows[name]["step_ms"]) for name in ("lower_bound", "carried", "planned")
    )
    assert bound <= carried < planned
    plan = check_files(output, "carried")
    assert plan.name == "carried"
    assert int(rows["carried"]["carried"]) == len(plans.carried_exchanges(plan)) > 0


def test_gradients_in_16_bits_have_a_row(costs_file: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out"
    arguments = ["--wire", "planned", "--steps-per-execution", "1", "--output", str(output)]
    assert program.main(["--costs", str(costs_file), *CLUSTER, *arguments]) == 0
    assert "\nplanned, in fewer bytes: float16 for " in capsys.readouterr().out
    rows = {row["plan"]: row for row in table_rows(output)}
    assert list(rows)[-3:] == ["planned", "narrow", "lower_bound"]
    bound, narrow, planned = (
        float(rows[name]["step_ms"]) for name in ("lower_bound", "narrow", "planned")
    )
    assert bound <= narrow < planned
    plan = check_files(output, "narrow")
    assert plan.wire == "float16"
    num_bytes = {weight.name: weight.num_bytes for weight in small_costs().weights}
    assert int(rows["narrow"]["narrow_bytes"]) == sum(num_bytes[name] for name in plan.narrow) > 0


def test_gradients_in_low_rank_have_a_row(costs_file: Path, tmp_path: Path, capsys: Any) -> None:
    costs = small_costs()
    weights = tuple(replace(weight, columns=256) for weight in costs.weights)
    costs_file.write_text(yaml_dataclass.dump(replace(costs, weights=weights)))
    output = tmp_path / "out"
    arguments = ["--low-rank", "auto", "--output", str(output)]
    arguments += ["--workers", "4", "--bandwidth", "100Mbit"]
    assert program.main(["--costs", str(costs_file), *arguments]) == 0
    assert "\nplanned, in fewer bytes: rank " in capsys.readouterr().out
    rows = {row["plan"]: row for row in table_rows(output)}
    bound, narrow, planned = (
        float(rows[name]["step_ms"]) for name in ("lower_bound", "narrow", "planned")
    )
    assert bound <= narrow < planned / 2
    plan = check_files(output, "narrow")
    assert rows["narrow"]["low_rank"].startswith(f"rank {plan.low_rank[0].rank} for ")


def test_many_clusters(costs_file: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out"
    arguments = ["--workers", "2", "8", "--bandwidth", "1Gbit", "10Gbit", "--output", str(output)]
    arguments += ["--steps-per-execution", "1"]
    assert program.main(["--costs", str(costs_file), *arguments]) == 0
    head, *lines = capsys.readouterr().out.splitlines()[:5]
    assert re.split("  +", head)[:2] == ["ms/step", "engine as it comes"]
    assert [line.split("  ")[0] for line in lines] == [
        f"{workers} workers, horovod, {bandwidth}, 50us"
        for bandwidth in ("1Gbit", "10Gbit")
        for workers in (2, 8)
    ]
    for workers in (2, 8):
        plan = check_files(output / f"{workers}-workers-10Gbit")
        assert (plan.workers, plan.engine) == (workers, "horovod")
    rows = table_rows(output)
    assert len(rows) == 4 * 7
    planned = [float(row["step_ms"]) for row in rows if row["plan"] == "planned"]
    assert planned[0] > planned[2]  # 1 and 10 Gbit/s


def test_hosts_with_several_devices(costs_file: Path, tmp_path: Path, capsys: Any) -> None:
    arguments = [*HOSTS, "--devices", "8", "--inside", "800Gbit", "--output", str(tmp_path)]
    arguments += ["--steps-per-execution", "1"]
    assert program.main(["--costs", str(costs_file), *arguments]) == 0
    assert "on 16 workers, 2 hosts, horovod, 1Gbit, 50us" in capsys.readouterr().out
    assert check_files(tmp_path).workers == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nowhere.yaml"], "--config nowhere.yaml cannot be read: "),
        (["--set", "bacth=3"], "there is no key bacth (did you mean batch?)"),
        (["--set", "model=mlp"], "there is nothing to plan for one worker (engine local: no "),
        (["--set", "engine=horovod"], "engine: horovod, but this process was not started by"),
        (["--workers", "4"], "--workers describes a cluster, which needs --bandwidth as well"),
        (["--latency", "1us"], "--latency describes a cluster, which needs --workers as well"),
        (["--hosts", "2"], "--hosts describes a cluster, which needs --bandwidth as well"),
        (["--devices", "8"], "--devices describes a cluster, which needs --hosts as well"),
        ([*CLUSTER, "--hosts", "2"], "--workers and --hosts both say how large the cluster is"),
        ([*HOSTS, "--devices", "8"], "--devices is 8 and --inside not given; hosts with several"),
        ([*HOSTS, "--inside", "1Gbit"], "--devices is 1 and --inside 1Gbit; hosts with several"),
        (["--bogus"], "unrecognized arguments: --bogus; python -m ooodist.plan --help shows"),
        (["--engine", "local"], "argument --engine: invalid choice: 'local' (choose from"),
        (["--costs", "nowhere.yaml", *CLUSTER], "--costs nowhere.yaml cannot be read: "),
        (["--costs", "README.md", *CLUSTER], "--costs README.md, line "),
        (["--costs", "COSTS"], "--costs COSTS says nothing of the network; describe it, as "),
        (["--costs", "COSTS", "--set", "batch=3", *CLUSTER], "--costs COSTS takes the place of "),
        (["--costs", "COSTS", "--profile", *CLUSTER], "--costs COSTS takes the place of measuring"),
        (
            ["--costs", "COSTS", "--workers", "1", "--bandwidth", "1Gbit"],
            "--workers is 1; it must be a whole number of at least 2",
        ),
        (
            ["--costs", "COSTS", "--workers", "2", "--bandwidth", "1Gb"],
            "--bandwidth is 1Gb; it must be a number and one of bit, Kbit, Mbit, Gbit, Tbit",
        ),
        (["--costs", "COSTS", *CLUSTER, "--latency", "3"], "--latency is 3; it must be a number "),
        (["--costs", "COSTS", *CLUSTER, "--servers", "2"], "servers is 2, but engine horovod"),
        (["--costs", "COSTS", *CLUSTER, "--memory", "3GB"], "--memory is 3GB; it must be a number"),
        (["--costs", "COSTS", *CLUSTER, "--memory", "0GiB"], "--memory is 0GiB; it must be a "),
        (
            ["--costs", "COSTS", *CLUSTER, "--steps-per-execution", "0"],
            "--steps-per-execution is 0; it ",
        ),
        (["--costs", "COSTS", *CLUSTER, "--memory", "1B"], "memory: a worker has 1 bytes, but a "),
        (
            ["--costs", "COSTS", *CLUSTER, "--output", "/dev/null/plans"],
            "--output is /dev/null/plans, where nothing can be written (Not a directory)",
        ),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, costs_file: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(ROOT)
    given = [str(costs_file) if argument == "COSTS" else argument for argument in arguments]
    assert program.main(given) == 2
    found = [line for line in capsys.readouterr().err.splitlines() if "ooodist: " in line]
    (error,) = [line for line in found if "planning for" not in line]
    assert error.startswith(f"ooodist: error: {message.replace('COSTS', str(costs_file))}")


def test_costs_that_are_none(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "costs.yaml"
    file.write_text("forward: []\nbackward: []\nweights: [{name: w, num_bytes: -1}]\n")
    assert program.main(["--costs", str(file), *CLUSTER]) == 2
    error = capsys.readouterr().err
    assert f"--costs {file}: weights[0].num_bytes is -1; it must be a whole number" in error


def test_help_and_a_mistake_end_the_program_at_once() -> None:
    result = run("--help")
    assert result.returncode == 0
    for part in ("horovodrun -np 2", "--workers 64 --bandwidth 10Gbit --latency 30us", "--costs"):
        assert part in result.stdout
    start = time.monotonic()
    result = run("--costs", "nowhere.yaml", *CLUSTER)
    assert result.returncode == 2
    assert len(errors(result.stdout)) == len(result.stdout.splitlines()) == 1
    assert time.monotonic() - start < 10  # 0.3 s on an idle machine


def test_a_job_on_a_described_cluster(tmp_path: Path) -> None:
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(SMALL_JOB + f"planning: {{profiles: {tmp_path}/profiles}}\n")
    result = run("--config", str(job), *CLUSTER, "--output", str(output))
    assert result.returncode == 0, result.stdout
    assert "mlp, batch 32 on 4 workers, horovod, 1Gbit, 50us" in result.stdout
    plan = check_files(output)
    assert (plan.engine, plan.workers) == ("horovod", 4)
    assert plan.model
    assert list((tmp_path / "profiles").iterdir())
    assert not (output / "config.yaml").exists()

    result = run("--config", str(job), *CLUSTER, "--output", "/dev/null/plans")
    assert result.returncode == 2
    (error,) = errors(result.stdout)
    assert "output is /dev/null/plans, where nothing can be written" in error

    result = run("--config", str(job), *CLUSTER, engine="collective")
    assert result.returncode == 2
    assert len(errors(result.stdout)) == 1  # which all ranks share
    assert "this process was started for engine collective" in result.stdout


def test_a_plan_for_the_workers_that_run_is_carried_out_and_compared(tmp_path: Path) -> None:
    engine = "collective"
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(SMALL_JOB + f"planning: {{profiles: {tmp_path}/profiles}}\n")
    result = run(
        *("--config", str(job), "--output", str(output), "--steps-per-execution", "2"),
        engine=engine,
    )
    assert result.returncode == 0, result.stdout
    assert f"[0] mlp, batch 32 on 2 workers, {engine}, as measured" in result.stdout
    assert "[1] mlp" not in result.stdout
    plan = check_files(output)
    assert (plan.engine, plan.workers) == (engine, 2)
    assert plan.steps_per_execution <= 2
    assert plan.predicted is not None
    assert plan.predicted.hidden_share is not None
    assert 0 <= plan.predicted.hidden_share <= 1

    training = tmp_path / "training"
    arguments = ["--config", str(job), "--plan", str(output / "plan.yaml")]
    result = run(*arguments, "--output", str(training), engine=engine, program="ooodist.train")
    assert result.returncode == 0, result.stdout
    assert "plan planned: predicted " in result.stdout
    assert "of the exchange hidden (ideal " in result.stdout
    assert (training / "trace.json.gz").exists()
