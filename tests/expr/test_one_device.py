"""The ways of a step on one device take turns, and compute the same."""

from __future__ import annotations

import csv
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ooodist.graph.subgraphs import Subgraphs
from tests.expr.scripts import load


@pytest.fixture(scope="module")
def run() -> ModuleType:
    return load("one_device", "run")


def row(run: ModuleType, way: str, **changes: Any) -> Any:
    made = run.Row("mlp", 8, way, process=None, log=Path("mlp.log"))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_each_way_has_its_turns(
    run: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = ["graph", "two_streams", "xla", "xla_streams"]
    rows = ["--rows", "mlp:8", "--ways", *ways]
    run.main([*rows, "--turns", "2", "--steps", "3", "--output", str(tmp_path)])
    with (tmp_path / "results.csv").open() as file:
        results = list(csv.DictReader(file))
    assert [(each["way"], each["turn"]) for each in results] == [
        (way, turn) for way in ways for turn in "01"
    ]
    assert all(0 < float(each["seconds"]) < 10 for each in results)
    table = (tmp_path / "results.md").read_text()
    assert table in capsys.readouterr().out
    lines = {way: next(line for line in table.splitlines() if f"| {way} |" in line) for way in ways}
    assert lines["two_streams"].endswith("| all 12 |")  # bit by bit
    assert " | 1.00x | " in lines["xla"]


def test_one_that_is_not_ready_in_time_is_left_out(run: ModuleType, tmp_path: Path) -> None:
    rows = ["--rows", "mlp:8", "--ways", "graph", "--ready-within", "0.1"]
    run.main([*rows, "--turns", "1", "--steps", "1", "--output", str(tmp_path)])
    (line,) = (tmp_path / "results.md").read_text().splitlines()[2:]
    assert line == "| mlp | 8 | graph | failed: not compiled within 0.1 s | | | |"


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
    monkeypatch.setitem(run.WAYS, "two_lanes", run.WAYS["two_streams"])  # unknown to the worker
    rows = ["--rows", "mlp:8", "--ways", "graph", "two_lanes"]
    run.main([*rows, "--turns", "1", "--steps", "1", "--output", str(tmp_path)])
    good, bad = (tmp_path / "results.md").read_text().splitlines()[-2:]
    assert "failed" not in good
    assert "two_lanes | failed: worker.py: error: argument way: invalid choice" in bad


@pytest.mark.parametrize("name", ["mlp", "mlp:", "mlp:many", "perceptron:8"])
def test_a_row_that_is_no_model_and_batch(run: ModuleType, tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match=r"is not MODEL:BATCH; models: mlp, densenet_12"):
        run.main(["--rows", name, "--output", str(tmp_path)])


def test_ratios_are_of_medians(run: ModuleType) -> None:
    rows = [
        row(run, "graph", seconds=[0.001, 0.009, 0.002], losses=[1.0, 0.5]),
        row(run, "xla", seconds=[0.004, 0.003, 0.001], losses=[1.0, 0.75]),
    ]
    graph, xla = run.report(rows).splitlines()[2:]
    assert graph == "| mlp | 8 | graph | 2.00 | 1.00 to 9.00 | 1.50x |  |"
    assert xla == "| mlp | 8 | xla | 3.00 | 1.00 to 4.00 | 1.00x | until step 2: 5e-01 off |"


def test_without_one_to_compare_with_there_is_no_ratio(run: ModuleType) -> None:
    (line,) = run.report([row(run, "xla_graphs", seconds=[0.002], losses=[1.0])]).splitlines()[2:]
    assert line == "| mlp | 8 | xla_graphs | 2.00 | 2.00 to 2.00 |  |  |"
