"""python -m ooodist.plan for pipelines, as people start it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ooodist.plan import __main__ as program
from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts, read_model_costs
from ooodist.planner.pipeline.plan import NAMES, make_plan
from ooodist.report import still_running
from ooodist.util import yaml_dataclass
from tests.jobs import ROOT
from tests.plan.program import planned, table_rows
from tests.plan.test_plan import errors, run, small_costs

PIPELINE = ["--pipeline", "4", "--microbatches", "8"]
HOSTS = ["--hosts", "2", "--inside", "2Gbit", "--bandwidth", "1Gbit"]
MIB = 1 << 20
FILES = {
    *("schedule.csv", "costs.yaml", "plans.csv", "timeline.png", "timeline.svg"),
    *("memory.png", "memory.svg", "timeline.json.gz"),
}
JOB = """\
model: {name: mlp, layers: [256, 256, 256]}
data: {name: digits}
batch: 64
parallel: {pipeline: 2, data: 2, microbatches: 4, memory_bytes: 1000000000, shard_optimizer: true}
"""


def eight_layers() -> ModelCosts:
    """All different; 1F1B on 4 ranks keeps 4 micro-batches of two of them."""
    layers = tuple(
        LayerCost(
            f"block_{place}",
            forward=1e-3,
            input_gradient=1e-3 + 1e-5 * place,
            weight_gradient=9e-4,
            update=1e-4,
            base_bytes=10 * MIB,
            input_bytes=MIB,
            weight_bytes=2 * MIB,
            gradient_bytes=MIB,
            sent_bytes=MIB // 2,
            exchanged_bytes=MIB,
        )
        for place in range(8)
    )
    return ModelCosts(layers, Link(1e-5, 1e-10))


@pytest.fixture
def layers_file(tmp_path: Path) -> Path:
    file = tmp_path / "eight_layers.yaml"
    file.write_text(yaml_dataclass.dump(eight_layers()))
    return file


@pytest.fixture
def step_file(tmp_path: Path) -> Path:
    file = tmp_path / "four_layers.yaml"
    file.write_text(yaml_dataclass.dump(small_costs()))
    return file


def test_all_schedules_for_one_setting(layers_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ["--costs", str(layers_file), *PIPELINE, "--memory", "64MiB"]
    *lines, imported = planned(*arguments, "--output", str(output), timeout=200)
    assert imported == "False"
    assert lines[0] == (
        "eight_layers on 4 ranks, 8 micro-batches, links of 10 us and 80 Gbit/s, at most 64.0 MiB "
        "a rank"
    )
    assert [line.split()[0] for line in lines[3 : 4 + len(NAMES)]] == [*NAMES, "auto"]
    assert any(line.startswith("gpipe cannot be used: rank 0, step ") for line in lines)
    assert any(line.startswith("rank 0 |F") and line.endswith("|") for line in lines)
    assert {file.name for file in output.iterdir()} == FILES
    assert [str(output / name) in "\n".join(lines) for name in FILES] == [True] * len(FILES)
    with Image.open(output / "timeline.png") as image:
        image.load()
    table = {row["schedule"]: row for row in table_rows(output)}
    assert list(table) == [*NAMES, "auto"]
    fitting = [float(row["step_ms"]) for row in table.values() if row["fits"] == "yes"]
    assert (table["gpipe"]["fits"], table["1f1b"]["fits"]) == ("no", "yes")
    assert float(table["auto"]["step_ms"]) == min(fitting)
    assert int(table["auto"]["peak_bytes"]) <= 64 * MIB
    # What it has planned with can be planned with again, and its schedule is the best.
    costs = read_model_costs(output / "costs.yaml")
    assert (costs.layers, costs.memory_limit) == (eight_layers().layers, 64 * MIB)
    made = make_plan(costs, 4, 8, str(output / "schedule.csv"))
    assert made.timeline.step_seconds * 1e3 == pytest.approx(min(fitting), abs=1e-5)


def test_a_sweep(layers_file: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out"
    arguments = ["--pipeline", "2", "4", "--microbatches", "4", "4", "--chunks", "1", "2"]
    arguments += ["--schedule", "1f1b", "modulo", "--output", str(output)]
    assert program.main(["--costs", str(layers_file), *arguments]) == 0
    shown = capsys.readouterr()
    folders = [f"p{p}-m4-v{v}" for p in (2, 4) for v in (1, 2)]
    assert {file.name for file in output.iterdir()} == {
        *(*folders, "plans.csv", "throughput.png", "throughput.svg")
    }
    for folder in folders:
        assert {file.name for file in (output / folder).iterdir()} == FILES - {"plans.csv"}
        assert str(output / folder) in shown.out
    with Image.open(output / "throughput.png") as image:
        image.load()
    assert len(table_rows(output)) == len(folders) * 2
    for row in table_rows(output):
        impossible = (row["schedule"], row["chunks"]) == ("1f1b", "2")
        assert (row["fits"] == "no") == impossible


def test_progress_is_told(layers_file: Path, tmp_path: Path) -> None:
    result = run(
        *("--costs", str(layers_file), "--pipeline", "2", "--microbatches", "2", "4"),
        *("--schedule", "1f1b", "--output", str(tmp_path / "out")),
    )
    assert result.returncode == 0, result.stdout
    told = re.findall(r"^ooodist: (\w+ p=.*)$", result.stdout, re.MULTILINE)
    assert told == [f"{doing} p=2, m={m}" for doing in ("planning", "drawing") for m in (2, 4)]


def test_what_takes_long_says_so(
    layers_file: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(still_running, "LINE_SECONDS", 0.001)
    arguments = (*PIPELINE, "--schedule", "1f1b", "--output", str(tmp_path / "out"))
    assert program.main(["--costs", str(layers_file), *arguments]) == 0
    assert re.search(
        r"^ooodist: simulating and drawing schedules: \d+ s so far$",
        capsys.readouterr().err,
        re.MULTILINE,
    )


def test_links_and_memory_of_the_options_take_the_place_of_the_files(
    layers_file: Path, tmp_path: Path, capsys: Any
) -> None:
    common = ["--costs", str(layers_file), *PIPELINE, "--schedule", "1f1b"]
    described = ["--bandwidth", "1Gbit", "--latency", "2ms", "--memory", "1GiB"]
    for name, options in (("file", []), ("described", described), ("rate", described[:2])):
        assert program.main([*common, *options, "--output", str(tmp_path / name)]) == 0
    file, slow, rate = (
        read_model_costs(tmp_path / name / "costs.yaml") for name in ("file", "described", "rate")
    )
    assert (file.link, file.memory_limit) == (Link(1e-5, 1e-10), None)
    assert (slow.link, slow.memory_limit) == (Link(2e-3, 8e-9), 1 << 30)
    assert rate.link.latency == pytest.approx(50e-6)
    assert rate.link.seconds_per_byte == slow.link.seconds_per_byte
    seconds = [
        float(table_rows(tmp_path / name)[0]["step_ms"]) for name in ("file", "rate", "described")
    ]
    assert seconds == sorted(set(seconds))
    assert "links of 2 ms and 1 Gbit/s, at most 1.0 GiB a rank" in capsys.readouterr().out


def test_a_schedule_of_a_file(layers_file: Path, tmp_path: Path) -> None:
    common = ["--costs", str(layers_file), *PIPELINE]
    first, second = tmp_path / "first", tmp_path / "second"
    assert program.main([*common, "--schedule", "zb_h1", "--output", str(first)]) == 0
    file = first / "schedule.csv"
    assert program.main([*common, "--schedule", str(file), "--output", str(second)]) == 0
    assert (second / "schedule.csv").read_text() == file.read_text()
    assert table_rows(second)[0]["step_ms"] == table_rows(first)[0]["step_ms"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--costs", "LAYERS"],
            "--costs LAYERS has the costs of layers, which are for pipelines; ",
        ),
        (["--costs", "STEP", *PIPELINE], "--costs STEP has the costs of a step of data parallel "),
        (["--costs", "README.md", *PIPELINE], "--costs README.md, line "),
        (["--costs", "nowhere.yaml", *PIPELINE], "--costs nowhere.yaml cannot be read: "),
        (["--costs", "LAYERS", *PIPELINE, "--set", "batch=3"], "--costs LAYERS takes the place"),
        (["--costs", "LAYERS", "--pipeline", "4"], "--pipeline needs --microbatches as well"),
        (["--pipeline", "4"], "--pipeline needs --microbatches as well"),
        (["--costs", "LAYERS", *PIPELINE, "--workers", "4"], "--workers is of data parallel "),
        (["--costs", "LAYERS", *PIPELINE, "--servers", "4"], "--servers is of data parallel "),
        (["--costs", "LAYERS", *PIPELINE, "--engine", "byteps"], "--engine is of data parallel "),
        ([*PIPELINE, "--steps-per-execution", "4"], "--steps-per-execution is of data parallel "),
        ([*PIPELINE, "--carried"], "--carried is of data parallel "),
        ([*PIPELINE, "--wire", "float16"], "--wire is of data parallel "),
        (["--costs", "LAYERS", *PIPELINE, "--data", "0"], "--data is 0; it must be a whole number"),
        (["--costs", "STEP", "--data", "2"], "--data is of a pipeline, and there is none; give "),
        (
            ["--costs", "LAYERS", "--devices", "8", "--microbatches", "4", "8"],
            "--microbatches is 4 8, but --devices divides the micro-batches of one step among ",
        ),
        (
            ["--costs", "LAYERS", "--devices", "8", "--pipeline", "3", "--microbatches", "4"],
            "--devices makes 8 in all, which is not --pipeline x --data; pipeline x data can be 8 ",
        ),
        (
            ["--costs", "LAYERS", "--devices", "8", "--pipeline", "4", "--microbatches", "7"],
            "7 micro-batches cannot be divided among 2 replicas (pipeline 4); make --microbatches ",
        ),
        (
            ["--costs", "LAYERS", "--devices", "x", "--microbatches", "7"],
            "--devices is x; it must be a whole number of at least 1",
        ),
        (
            ["--costs", "LAYERS", "--devices", "8", "--pipeline", "4"],
            "--devices needs --microbatches as well, into which a batch is split; give ",
        ),
        (
            ["--costs", "LAYERS", *PIPELINE, "--inside", "1Gbit"],
            "--inside is 1Gbit, the rate of links inside of hosts, which need --hosts as well; ",
        ),
        (
            ["--costs", "LAYERS", *PIPELINE, "--hosts", "2", "--devices", "2"],
            "--hosts needs --inside as well, for pipelines; give --hosts 2 --devices 8 --inside ",
        ),
        (
            [*("--costs", "LAYERS", *PIPELINE, "--devices", "2"), *HOSTS, "--hosts", "2", "4"],
            "--hosts is 2 4, but pipelines are planned for hosts of one number; give one",
        ),
        (
            [*("--costs", "LAYERS", *PIPELINE, "--devices", "2"), *HOSTS, "--bandwidth", "9Gbit"],
            "--inside is 2Gbit, which is slower than --bandwidth 9Gbit; links inside of a host ",
        ),
        (
            [*("--costs", "LAYERS", *PIPELINE, "--devices", "3"), *HOSTS],
            "--devices makes 6 in all, which is not --pipeline x --data; pipeline x data can be 6 ",
        ),
        (["--costs", "STEP", "--chunks", "2"], "--chunks is of a pipeline, and there is none; "),
        (["--microbatches", "2"], "--microbatches is of a pipeline, and there is none; give "),
        (["--schedule", "1f1b"], "--schedule is of a pipeline, and there is none; give "),
        (
            ["--costs", "LAYERS", "--pipeline", "0", "--microbatches", "8"],
            "--pipeline is 0; it must be a whole number of at least 1",
        ),
        (
            ["--costs", "LAYERS", "--pipeline", "2", "--microbatches", "8", "x"],
            "--microbatches is x; it must be a whole number of at least 1",
        ),
        (["--costs", "LAYERS", *PIPELINE, "--chunks", "0"], "--chunks is 0; it must be a whole"),
        (
            ["--costs", "LAYERS", *PIPELINE, "--schedule", "zb_h3"],
            "--schedule is zb_h3 (did you mean zb_h",
        ),
        (
            ["--costs", "LAYERS", *PIPELINE, "--schedule", "nowhere.csv"],
            "none of nowhere.csv can be used for eight_layers on 4 ranks",
        ),
        (["--costs", "LAYERS", *PIPELINE, "--latency", "1us"], "--latency describes links, which "),
        (
            ["--costs", "LAYERS", *PIPELINE, "--bandwidth", "1Gbit", "10Gbit"],
            "--bandwidth is 1Gbit 10Gbit, but a pipeline is planned for links of one kind; give ",
        ),
        (
            ["--costs", "LAYERS", *PIPELINE, "--bandwidth", "1Gb"],
            "--bandwidth is 1Gb; it must be a number and one of bit",
        ),
        (["--costs", "LAYERS", *PIPELINE, "--memory", "3GB"], "--memory is 3GB; it must be a "),
        (
            ["--costs", "LAYERS", *PIPELINE, "--memory", "1MiB", "--schedule", "1f1b"],
            "none of 1f1b can be used for eight_layers on 4 ranks, 8 micro-batches, links of ",
        ),
        (
            ["--costs", "LAYERS", "--pipeline", "9", "--microbatches", "2", "--schedule", "1f1b"],
            "none of 1f1b can be used for eight_layers on 9 ranks",
        ),
        (
            ["--costs", "LAYERS", *PIPELINE, "--schedule", "1f1b", "--output", "/dev/null/x"],
            "--output is /dev/null/x, where nothing can be written (Not a directory)",
        ),
        (
            ["--set", "parallel={pipeline: 2, microbatches: 4, split: [a, b]}"],
            "parallel.split makes 3 stages, but there are 2 ranks; every rank must have as many",
        ),
        (
            ["--set", "parallel={pipeline: 2, microbatches: 4, split: [a]}", "--chunks", "2"],
            "--chunks is 2, but parallel.split says what the stages are; leave the one or the ",
        ),
        (
            ["--set", "parallel={pipeline: 2, microbatches: 4}", "--microbatches", "8", "6"],
            "batch is 64, which cannot be split into 6 micro-batches of one size; make batch a "
            "multiple of them, as with --set batch=60",
        ),
        (
            ["--set", "parallel={pipeline: 2, microbatches: 4}", "--workers", "2"],
            "--workers is of data parallel training, and this is a pipeline",
        ),
    ],
)
def test_mistakes(
    arguments: list[str],
    message: str,
    layers_file: Path,
    step_file: Path,
    monkeypatch: Any,
    capsys: Any,
) -> None:
    monkeypatch.chdir(ROOT)
    files = {"LAYERS": str(layers_file), "STEP": str(step_file)}
    assert program.main([files.get(argument, argument) for argument in arguments]) == 2
    for name, file in files.items():
        message = message.replace(name, file)
    found = [line for line in capsys.readouterr().err.splitlines() if "ooodist: " in line]
    (error,) = [line for line in found if "planning p=" not in line]
    assert error.startswith(f"ooodist: error: {message}")


def test_costs_of_layers_that_are_none(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "costs.yaml"
    for text, message in (
        ("layers: [{name: a, forward: -1}]\n", "layers[0].forward is -1; it must be a number"),
        ("layers: [{name: a}]\n", "the 1 layers of costs take 0 seconds"),
        ("- 1\n", "the whole file is - 1; it must be a group of keys"),
    ):
        file.write_text(text)
        assert program.main(["--costs", str(file), *PIPELINE]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE"])
def test_a_job_under_a_launcher(name: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv(name, "2")
    assert program.main(["--set", "parallel={pipeline: 2, microbatches: 4}"]) == 2
    error = capsys.readouterr().err
    assert "a pipeline is planned in one process, but this one was started for engine " in error
    assert f"({name}=2); start it with plain python" in error


def test_a_job(tmp_path: Path) -> None:
    """Its layers are measured for each number of micro-batches."""
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(f"{JOB}output: {output}\n")
    names = ("--schedule", "1f1b", "zb_h1")
    result = run("--config", str(job), *names)
    assert result.returncode == 0, result.stdout
    assert "measuring the layers of mlp for m=4" in result.stdout
    assert (
        "mlp, batch 64 on 2 ranks, 4 micro-batches, 2 replicas, sharded optimizer, links that cost "
        "nothing, at most 953.7 MiB a rank"
    ) in result.stdout
    assert {file.name for file in (output / "plan").iterdir()} == FILES
    (row, _) = table_rows(output / "plan")
    assert row["unit"] == "samples/s"
    assert float(row["throughput"]) == pytest.approx(2 * 64e3 / float(row["step_ms"]), rel=1e-3)
    costs = read_model_costs(output / "plan" / "costs.yaml")
    assert [layer.name for layer in costs.layers][1:4] == ["dense_0", "dense_1", "dense_2"]
    assert costs.layers[1].optimizer_bytes > 0  # all of it: a job's replicas divide it again
    assert (costs.link, costs.memory_limit) == (Link(), 10**9)
    assert not costs.has_barrier

    sweep = ("--microbatches", "2", "8", "--bandwidth", "10Gbit", "--memory", "2GiB")
    result = run("--config", str(job), *names, *sweep, "--output", str(tmp_path / "sweep"))
    assert result.returncode == 0, result.stdout
    few, many = (
        read_model_costs(tmp_path / "sweep" / f"p2-m{m}-d2" / "costs.yaml") for m in (2, 8)
    )
    assert few.link == many.link == Link(pytest.approx(50e-6), 8e-10)
    assert few.memory_limit == many.memory_limit == 2 << 30
    # A micro-batch of 32 samples, and of 8.
    assert few.layers[1].sent_bytes == 4 * many.layers[1].sent_bytes


def test_a_job_whose_stages_are_said_and_recomputed(tmp_path: Path) -> None:
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(JOB)
    words = ("--set", "parallel.split=[dense_2]", "--set", "parallel.recompute=true")
    words += ("--set", "optimizer.global_clipnorm=1")
    result = run("--config", str(job), *words, "--schedule", "1f1b", "--output", str(output))
    assert result.returncode == 0, result.stdout
    costs = read_model_costs(output / "costs.yaml")
    assert [layer.name for layer in costs.layers][1:] == ["dense_2"]
    assert costs.recompute
    assert costs.has_barrier  # as the norm is that of all gradients
    result = run("--config", str(job), "--set", "parallel.split=[dense_9]")
    assert result.returncode == 2
    (error,) = errors(result.stdout)
    assert "parallel.split names dense_9 (did you mean dense_" in error


def test_a_job_that_cannot_write(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    result = run("--config", str(job), "--output", "/dev/null/plans")
    assert result.returncode == 2
    (error,) = errors(result.stdout)
    assert "output is /dev/null/plans, where nothing can be written" in error


def test_a_job_that_divides_its_devices(tmp_path: Path) -> None:
    """Each way trains on the same: 64 samples a step."""
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    divided = JOB.replace("pipeline: 2, data: 2", "devices: 4")
    job.write_text(f"{divided}output: {output}\n")
    result = run("--config", str(job), "--schedule", "1f1b")
    assert result.returncode == 0, result.stdout
    found = {file.name for file in (output / "plan").iterdir() if file.is_dir()}
    assert found == {"p4-m4", "p2-m2-d2", "p1-m1-d4"}
    for row in table_rows(output / "plan"):
        assert float(row["throughput"]) == pytest.approx(64e3 / float(row["step_ms"]), rel=1e-3)
