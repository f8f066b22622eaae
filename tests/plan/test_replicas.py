"""python -m ooodist.plan for replicas of pipelines: given, or as devices and hosts allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ooodist.plan import __main__ as program
from ooodist.planner.pipeline.layer_costs import Link, read_model_costs
from ooodist.util import yaml_dataclass
from tests.plan.program import table_rows
from tests.plan.test_pipelines import JOB, MIB, PIPELINE, eight_layers
from tests.plan.test_plan import run


@pytest.fixture
def layers_file(tmp_path: Path) -> Path:
    file = tmp_path / "eight_layers.yaml"
    file.write_text(yaml_dataclass.dump(eight_layers()))
    return file


def test_replicas(layers_file: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out"
    arguments = ["--costs", str(layers_file), *PIPELINE, "--data", "1", "4", "--schedule", "zb_h1"]
    assert program.main([*arguments, "--output", str(output)]) == 0
    assert "4 ranks, 8 micro-batches, 4 replicas" in capsys.readouterr().out
    one, four = table_rows(output)
    # A ring of 4 over 10 us and 80 Gbit/s: the gradients of two layers.
    assert float(one["exposed_exchange_ms"]) == 0
    exchange = 6e3 * (1e-5 + 2 * MIB / 4 * 1e-10)
    assert float(four["exposed_exchange_ms"]) == pytest.approx(exchange, abs=1e-5)
    assert float(four["throughput"]) == pytest.approx(4 * 8e3 / float(four["step_ms"]), rel=1e-6)
    # What was planned with replicas is planned with them again.
    file = output / "p4-m8-d4" / "costs.yaml"
    again = ["--costs", str(file), *PIPELINE, "--schedule", "zb_h1", "--output"]
    assert program.main([*again, str(tmp_path / "again")]) == 0
    assert table_rows(tmp_path / "again")[0]["step_ms"] == four["step_ms"]


def test_replicas_shard_the_optimizer(tmp_path: Path, capsys: Any) -> None:
    """A rank of n replicas keeps an n-th of the state; files have all of it."""
    layers = tuple(
        replace(layer, state_bytes=9 * MIB, optimizer_bytes=6 * MIB)
        for layer in eight_layers().layers
    )
    costs, output = replace(eight_layers(), layers=layers), tmp_path / "out"
    file = tmp_path / "adam.yaml"
    file.write_text(yaml_dataclass.dump(costs))
    arguments = ["--costs", str(file), *PIPELINE, "--schedule", "1f1b", "--data", "1", "3"]
    assert program.main([*arguments, "--shard-optimizer", "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "4 ranks, 8 micro-batches, 3 replicas, sharded optimizer" in shown
    assert "the replicas divide the model's 48.0 MiB of optimizer state" in shown
    alone, sharded = table_rows(output)
    assert [row["shard_optimizer"] for row in (alone, sharded)] == ["no", "yes"]
    peak = int(alone["peak_bytes"])  # of two layers
    assert int(sharded["peak_bytes"]) == peak - 2 * 4 * MIB
    assert read_model_costs(output / "p4-m8-d3" / "costs.yaml").layers == layers
    # What fits into memory only so is what is advised, as a job would have it.
    limit = ["--memory", f"{peak - 6 * MIB}B"]
    devices = ["--costs", str(file), "--devices", "8", "--microbatches", "16", "--pipeline", "4"]
    devices += ["--schedule", "1f1b", "--output", str(tmp_path / "devices"), *limit]
    assert program.main(devices) == 2
    assert program.main([*devices, "--shard-optimizer"]) == 0


def test_there_may_be_no_optimizer_state_to_shard(
    layers_file: Path, tmp_path: Path, capsys: Any
) -> None:
    arguments = ["--costs", str(layers_file), "--devices", "4", "--microbatches", "8"]
    arguments += ["--pipeline", "1", "2", "--schedule", "1f1b", "--shard-optimizer"]
    assert program.main([*arguments, "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "sharded optimizer: the layers have no optimizer_bytes" in shown
    assert ("shard_optimizer: true}'" in shown) == ("data: 1," not in shown)


def test_devices(layers_file: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out"
    arguments = ["--costs", str(layers_file), "--devices", "12", "--microbatches", "24"]
    arguments += ["--memory", "64MiB", "--schedule", "1f1b", "--output", str(output)]
    assert program.main(arguments) == 0
    shown = capsys.readouterr().out
    rows = {(int(row["ranks"]), int(row["replicas"])): row for row in table_rows(output)}
    assert list(rows) == [(12, 1), (6, 2), (4, 3), (3, 4), (2, 6), (1, 12)]
    assert all(int(row["microbatches"]) * d == 24 for (_, d), row in rows.items())
    # Eight layers are too few for twelve ranks, and too many for two.
    fitting = {size for size, row in rows.items() if row["fits"] == "yes"}
    assert fitting == {(6, 2), (4, 3), (3, 4)}
    assert "nothing for 12 ranks, 24 micro-batches; 1f1b: 8 layers cannot be split" in shown
    assert "nothing for 2 ranks, 4 micro-batches, 6 replicas; 1f1b: rank 0" in shown
    best = max(fitting, key=lambda size: float(rows[size]["throughput"]))
    assert f"parallel={{pipeline: {best[0]}, data: {best[1]}, microbatches: " in shown
    only = [*arguments[:-2], "--pipeline", "4", "--output", str(tmp_path / "only")]
    assert program.main(only) == 0
    assert [row["replicas"] for row in table_rows(tmp_path / "only")] == ["3"]


def test_hosts(layers_file: Path, tmp_path: Path, capsys: Any) -> None:
    arguments = ["--costs", str(layers_file), "--microbatches", "8", "--schedule", "1f1b"]
    arguments += ["--hosts", "2", "--devices", "4", "--inside", "800Gbit", "--bandwidth", "1Gbit"]
    assert program.main([*arguments, "--output", str(tmp_path / "all")]) == 0
    shown = capsys.readouterr().out
    assert "2 hosts of 4 devices, links of 800 Gbit/s inside of them, and links of 50 us" in shown
    assert "fastest on 8 devices: " in shown
    assert "\nhost  replica  ranks" in shown
    rows = {(int(row["ranks"]), int(row["replicas"])) for row in table_rows(tmp_path / "all")}
    assert rows == {(8, 1), (4, 2), (2, 4), (1, 8)}
    # Half of the gradients of two stages in one host, rather than those of all over its link.
    costs = read_model_costs(tmp_path / "all" / "p4-m4-d2" / "costs.yaml")
    assert costs.replica_link == Link(0.0, 8 / 800e9)
    assert costs.links is not None
    assert [costs.links[a][a + 1].latency for a in range(3)].count(pytest.approx(50e-6)) == 1


def test_devices_are_divided_for_a_job(tmp_path: Path) -> None:
    """Its 128 samples of a step are divided anew; a micro-batch always has 16 of them."""
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(JOB)
    result = run(
        *("--config", str(job), "--devices", "4", "--bandwidth", "10Gbit"),
        *("--microbatches", "8", "--schedule", "1f1b", "--output", str(output)),
    )
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("measuring the layers") == 1
    assert "mlp, batch 128, links of " in result.stdout
    assert "fastest on 4 devices: " in result.stdout
    rows = {int(row["ranks"]): row for row in table_rows(output)}
    assert {ranks: (row["replicas"], row["microbatches"]) for ranks, row in rows.items()} == {
        **{4: ("1", "8"), 2: ("2", "4"), 1: ("4", "2")}
    }
    for row in rows.values():
        assert float(row["throughput"]) == pytest.approx(128e3 / float(row["step_ms"]), rel=1e-3)
