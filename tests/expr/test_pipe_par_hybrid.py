"""Two pipelines of two ranks, without the emulated network, which needs root."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ooodist.launcher.host import Host
from tests.expr.scripts import load
from tests.jobs import ROOT
from tests.pipeline.jobs import run_python

FOLDER = ROOT / "expr/pipe_par"
LAYERS, WIDTH, BATCH = 6, 600, 32  # a layer's gradient is 1.4 MB: two buckets a stage


def test_mpirun_reaches_a_host_by_its_name(tmp_path: Path) -> None:
    """With a command in several words, as mpirun passes it; here hosts have no network."""
    core = min(os.sched_getaffinity(0))
    hosts = [Host(name="host0"), Host(name="host1", cores=(core,))]
    agent = tmp_path / "agent.sh"
    agent.write_text(load("pipe_par", "lab_mpirun").agent(hosts))
    words = ["A='on it';", "export A;", 'echo "$A:"', "$(nproc)"]

    def say(host: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(agent), host, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert say("host0").stdout == f"on it: {len(os.sched_getaffinity(0))}\n"
    assert say("host1").stdout == "on it: 1\n"
    assert say("host2").returncode == 1
    assert say("host2").stderr == "no host host2\n"


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """The rows of a small model, and the folder with its traces."""
    folder = tmp_path_factory.mktemp("hybrid")
    sizes = LAYERS, WIDTH, BATCH
    file = folder / "answer.json"
    worker = FOLDER / "hybrid_worker.py"
    job = run_python(4, worker, file, folder, *sizes, "gpipe", 1, 2, seconds=300)
    assert job.returncode == 0, job.stdout
    return json.loads(file.read_text()), folder


def test_each_way_has_its_turn(answer: tuple[list[dict[str, Any]], Path]) -> None:
    rows, _ = answer
    assert [(row["sums"], row["buckets"]) for row in rows] == [
        ("at the end", "1+1"),
        ("in buckets", "2+2"),
    ]
    for row in rows:
        assert 0 <= row["hidden"] <= 1, row
        assert 0 < row["sums_seconds"] < row["measured"], row
        assert row["predicted"] > row["exchange"] > 0, row


def test_the_trace_has_each_bucket(answer: tuple[list[dict[str, Any]], Path]) -> None:
    """And none begins before a W of its stage."""
    _, folder = answer
    for name, buckets in (("at_the_end", 1), ("in_buckets", 2)):
        packed = (folder / name / "trace.json.gz").read_bytes()
        events = json.loads(gzip.decompress(packed))["traceEvents"]
        bars = [event for event in events if event["ph"] == "X"]
        for step in {bar["pid"] for bar in bars} - {0}:  # the first one is predicted
            for stage in range(2):
                own = [bar for bar in bars if bar["pid"] == step]
                sums = [bar for bar in own if bar["name"] == f"stage {stage}"]
                assert len(sums) == buckets
                backward = [bar["ts"] for bar in own if bar["name"].startswith(f"{stage}B")]
                assert min(bar["ts"] for bar in sums) > max(backward)
                assert all(bar["dur"] > 0 for bar in sums)


def test_the_table_has_medians() -> None:
    row = {"sums": "at the end", "sums_seconds": 0.7, "hidden": 0.25}
    rows = [{**row, "measured": each, "predicted": 1.0} for each in (1.0, 1.25, 2.0)]
    table = load("pipe_par", "hybrid").table([*rows, {**rows[0], "sums": "in buckets"}])
    assert table.splitlines()[2:] == [
        "| at the end | 1250 ms | 1000 ms | -20.0% | 700 ms | 25% |",
        "| in buckets | 1000 ms | 1000 ms | +0.0% | 700 ms | 25% |",
    ]
