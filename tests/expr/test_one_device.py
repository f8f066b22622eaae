"""The ways of a step on one device take turns, and compute the same."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from ooodist.graph.subgraphs import Subgraphs
from tests.expr.scripts import load
from tests.fork_server import fast_python


@pytest.fixture(scope="module")
def run() -> ModuleType:
    return load("one_device", "run")


@pytest.fixture(autouse=True)
def _fast_workers(run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA reads a worker's flags when it is first used."""
    monkeypatch.setattr(run.sys, "executable", fast_python())


class Named(NamedTuple):
    kind: str
    layer: str
    variables: tuple[str, ...] = ("kernel",)

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.layer}"


def row(run: ModuleType, way: str, **changes: Any) -> Any:
    made = run.Row("mlp", 8, way, threads="", process=None, log=Path("mlp.log"))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_each_way_has_its_turns(
    run: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = ["graph", "two_streams", "two_lanes_late_4", "xla", "xla_streams"]
    rows = ["--rows", "mlp:8", "--ways", *ways]
    run.main([*rows, "--turns", "2", "--steps", "3", "--output", str(tmp_path)])
    with (tmp_path / "results.csv").open() as file:
        results = list(csv.DictReader(file))
    assert [(each["way"], each["turn"]) for each in results] == [
        (way, turn) for way in ways for turn in "01"
    ]
    assert all(0 < float(each["seconds"]) < 10 for each in results)
    assert all(0 < float(each["core_seconds"]) < 20 for each in results)
    table = (tmp_path / "results.md").read_text()
    assert table in capsys.readouterr().out
    lines = {way: next(line for line in table.splitlines() if f"| {way} |" in line) for way in ways}
    for way in ("two_streams", "two_lanes_late_4"):
        assert lines[way].endswith("| all 12 |")  # bit by bit
    assert " | 1.00x | " in lines["xla"]


@pytest.mark.parametrize("threads", ["2", "2/0", "2/1/1", "two/one", "/1"])
def test_threads_that_are_none(
    run: ModuleType, threads: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run.main(["--rows", "mlp:8", "--threads", threads])
    assert f"'{threads}' is not OPS/THREADS, such as 2/1" in capsys.readouterr().err


def test_the_worker_obeys_the_threads(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(run.subprocess, "Popen", lambda *_args, env, **_: started.append(env))
    options = run.argparse.Namespace(output=tmp_path, deterministic=False)
    run.start("mobilenet_v3_0.5:8", "graph", "2/1", options)
    row = run.start("mobilenet_v3_0.5:8", "graph", "", options)
    assert started[0]["TF_NUM_INTEROP_THREADS"] == "2"
    assert started[0]["TF_NUM_INTRAOP_THREADS"] == "1"
    assert started[1].get("TF_NUM_INTEROP_THREADS") == os.environ.get("TF_NUM_INTEROP_THREADS")
    assert row.log.name == "mobilenet_v3_0.5_8_graph.log"
    assert str(row) == "mobilenet_v3_0.5 8 graph"


def test_two_lanes_overlap_dW_with_what_follows() -> None:
    worker = load("one_device", "worker")
    units = [Named(*each.split(":")) for each in ("dX:c", "dW:c", "dX:b", "dW:b", "dW:a")]
    assert worker.inorder(units) == ["dX:c", "dW:c", "dX:b", "dW:b", "dW:a"]
    assert worker.late(units) == ["dX:c", "dX:b", "dW:a", "dW:b", "dW:c"]
    early = Named("dW", "a@1", variables=())  # a part that dW:a needs
    assert worker.late([early, *units])[0] == "dW:a@1"


def test_one_that_is_not_ready_in_time_is_left_out(run: ModuleType, tmp_path: Path) -> None:
    rows = ["--rows", "mlp:8", "--ways", "graph", "--ready-within", "0.1"]
    run.main([*rows, "--turns", "1", "--steps", "1", "--output", str(tmp_path)])
    (line,) = (tmp_path / "results.md").read_text().splitlines()[2:]
    assert line == "| mlp | 8 | graph |  | failed: not compiled within 0.1 s | | | | | |"


def test_xla_gets_a_call_with_its_stream() -> None:
    streams = load("one_device", "streams")

    @tf.function(jit_compile=True, autograph=False)
    def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.shape(x)[0]  # XLA must know it
        product = tf.matmul(x, y, transpose_a=True)
        result = tf.reshape(product, [rows, -1]) + 1.0
        operations = [product.op, result.op.inputs[0].op, result.op]
        (moved,) = streams.on_second_stream(Subgraphs(x.graph), operations, [result])
        return moved, tf.nn.relu(x)

    x, y = tf.random.normal((4, 8)), tf.random.normal((4, 6))
    expected = tf.reshape(tf.matmul(x, y, transpose_a=True), (4, 12)) + 1.0
    np.testing.assert_allclose(step(x, y)[0], expected, rtol=1e-6)
    for stage in ("hlo", "optimized_hlo"):
        lines = step.experimental_get_compiler_ir(x, y)(stage=stage).splitlines()
        (call,) = [line for line in lines if " call(" in line]
        assert 'frontend_attributes={_xla_stream_annotation="1",inlineable="false"}' in call
        assert "f32[4,12]" in call.partition(" call(")[0]


def test_what_cannot_run_is_named_and_the_others_go_on(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.WAYS, "three_lanes", run.WAYS["two_lanes"])  # unknown to the worker
    rows = ["--rows", "mlp:8", "--ways", "graph", "three_lanes", "--threads", "2/1"]
    run.main([*rows, "--turns", "1", "--steps", "1", "--output", str(tmp_path)])
    good, bad = (tmp_path / "results.md").read_text().splitlines()[-2:]
    assert good.startswith("| mlp | 8 | graph | 2/1 | ")
    assert "failed" not in good
    assert "three_lanes | 2/1 | failed: worker.py: error: argument way: invalid choice" in bad


@pytest.mark.parametrize("name", ["mlp", "mlp:", "mlp:many", "perceptron:8"])
def test_a_row_that_is_no_model_and_batch(run: ModuleType, tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match=r"is not MODEL:BATCH; models: mlp, densenet_12"):
        run.main(["--rows", name, "--output", str(tmp_path)])


def test_ratios_are_of_medians(run: ModuleType) -> None:
    times = {"core_seconds": [0.003, 0.004, 0.006]}
    rows = [
        row(run, "graph", threads="1/1", seconds=[0.004, 0.004, 0.004], losses=[1.0, 0.5], **times),
        row(run, "graph", threads="2/1", seconds=[0.001, 0.009, 0.002], losses=[1.0, 0.5], **times),
        row(run, "xla", seconds=[0.004, 0.003, 0.001], losses=[1.0, 0.75], **times),
    ]
    slow, graph, xla = run.report(rows).splitlines()[2:]
    assert slow == "| mlp | 8 | graph | 1/1 | 4.00 | 4.00 to 4.00 | 1.00 | 0.75x | 0.50x |  |"
    assert graph == "| mlp | 8 | graph | 2/1 | 2.00 | 1.00 to 9.00 | 2.00 | 1.50x | 1.00x | all 2 |"
    different = "until step 2: 5e-01 off"
    assert xla == f"| mlp | 8 | xla |  | 3.00 | 1.00 to 4.00 | 1.33 | 1.00x | 0.67x | {different} |"


def test_without_one_to_compare_with_there_is_no_ratio(run: ModuleType) -> None:
    alone = row(run, "xla_graphs", seconds=[0.002], core_seconds=[0.002], losses=[1.0])
    (line,) = run.report([alone]).splitlines()[2:]
    assert line == "| mlp | 8 | xla_graphs |  | 2.00 | 2.00 to 2.00 | 1.00 |  |  |  |"
