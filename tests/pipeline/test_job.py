"""``mpirun -np 2 python -m ooodist.train`` with a pipeline: what a person sees and gets.

One run is the base: two epochs on two stages. Others go on from its first checkpoint, on another
number of stages, or end as they must.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist.checkpoint import convert
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.parts import Parts, read_manifest
from tests.fork_server import fast_python
from tests.jobs import ROOT
from tests.pipeline.jobs import VARIABLES, run_python, start_mpi

JOB = """\
model: {name: mlp, layers: [48, 32, 24]}
data: {name: digits}
batch: 64
epochs: 2
steps_per_epoch: 6
seed: 7
optimizer: {name: sgd, learning_rate: 0.05, momentum: 0.9}
parallel: {pipeline: 2, microbatches: 4, schedule: zb_h1}
timeout: 20
report: {tensorboard: false, trace: 2}
"""
ERROR_CODE = 2


def arguments(folder: Path, *overrides: str) -> list[str]:
    file = folder / "job.yaml"
    file.write_text(JOB)
    sets = [part for override in overrides for part in ("--set", override)]
    return ["-m", "ooodist.train", "--config", str(file), "--output", str(folder / "out"), *sets]


def alone(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [fast_python(), *command],
        cwd=ROOT,
        env=os.environ | VARIABLES,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output folder of the base run, and what it printed."""
    folder = tmp_path_factory.mktemp("base")
    job = run_python(2, *arguments(folder), seconds=300)
    assert job.returncode == 0, job.stdout[-4000:]
    return folder / "out", job.stdout


def weights(checkpoint: Path) -> list[np.ndarray]:
    """The weights in a checkpoint in parts, in the model's order."""
    with Parts(checkpoint) as parts:
        trained = [v for v in parts.state.variables if not v.path.startswith("sgd/")]
        return [parts.read(index) for index in range(len(trained))]


def only_first(base: Path, folder: Path) -> Path:
    """An output folder with the first checkpoint of the base run."""
    name = folders.parts_name(1)
    shutil.copytree(base / name, folder / "out" / name)
    return folder / "out"


def assert_close(one: Path, other: Path) -> None:
    """Checks that two checkpoints have the same weights, up to the last bits."""
    assert weights(one)
    for mine, theirs in zip(weights(one), weights(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


def test_what_is_printed(base: tuple[Path, str]) -> None:
    _, text = base
    for words in (
        "rank 0, stage 0: ",
        "rank 1, stage 1: ",
        "schedule zb_h1, 4 micro-batches: predicted ",
        "epoch 2/2 step 6/6 | ",
        "pipeline     2 stages on 2 ranks, 4 micro-batches, schedule zb_h1",
        "workers      2 (engine mpi), batch 64",
        "validation   ",
    ):
        assert words in text, text
    assert re.search(r"schedule zb_h1: predicted .* measured .* bubble predicted", text), text
    assert re.search(r"speed +[\d.]+ ms a step \(median; predicted [\d.]+\), \d+ samples/s", text)


def test_starts_from_a_file_of_weights(base: tuple[Path, str], tmp_path: Path) -> None:
    """Each rank reads its own: without training, the weights are those of the file."""
    file = base[0] / "model.keras"
    start = (f"model.weights={file}", "optimizer={name: sgd, learning_rate: 0.0}", "epochs=1")
    job = run_python(2, *arguments(tmp_path, *start), seconds=300)
    assert job.returncode == 0, job.stdout[-4000:]
    assert f"starts from the weights in {file}" in job.stdout
    expected = keras.models.load_model(file).weights
    found = weights(tmp_path / "out" / folders.parts_name(1))
    for mine, theirs in zip(found, expected, strict=False):  # and the optimizer's
        np.testing.assert_array_equal(mine, theirs.numpy())
    shutil.rmtree(tmp_path / "out")
    wrong = (f"model.weights={file}", "model.layers=[48, 31, 24]")
    job = run_python(2, *arguments(tmp_path, *wrong), seconds=300)
    assert job.returncode == ERROR_CODE, job.stdout
    assert "layer dense_1 has shapes (48, 31), (31,) in the model, but" in job.stdout


def test_each_rank_writes_its_own(base: tuple[Path, str]) -> None:
    out, _ = base
    names = sorted(path.name for path in out.glob("*epoch*"))
    assert names == ["best-epoch-000002", "checkpoint-epoch-000001", "checkpoint-epoch-000002"]
    manifest = read_manifest(out / "checkpoint-epoch-000002")
    assert sorted(manifest.sizes) == ["part-0.npz", "part-1.npz"]
    where = {entry.member: entry.file for entry in manifest.variables}
    assert where["dense_0/kernel.npy"] == where["sgd/dense_0_kernel_momentum.npy"] == "part-0.npz"
    assert (
        where["predictions/bias.npy"] == where["sgd/predictions_bias_momentum.npy"] == "part-1.npz"
    )
    assert where["sgd/iteration.npy"] == "part-0.npz"


def test_the_model_is_a_keras_file(base: tuple[Path, str]) -> None:
    """It is of the whole model, and a checkpoint as well."""
    out, text = base
    assert (out / "schedule.csv").read_text().startswith("0F0,")
    model = keras.models.load_model(out / "model.keras")
    accuracy = re.search(r"validation +.*accuracy ([0-9.]+)", text)
    assert accuracy is not None
    assert model.optimizer.iterations.numpy() == 12
    assert float(accuracy[1]) > 0.2  # of ten classes
    assert any(np.abs(v.numpy()).max() > 0 for v in model.optimizer.variables[2:])
    for weight, saved in zip(model.weights, weights(out / "checkpoint-epoch-000002"), strict=True):
        np.testing.assert_array_equal(weight.numpy(), saved)
    assert folders.read_state(out / "model.keras").epoch == 2


def test_the_trace_shows_all_ranks(base: tuple[Path, str]) -> None:
    out, _ = base
    events = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))["traceEvents"]
    bars = [event for event in events if event["ph"] == "X" and event["name"] == "1W3"]
    assert len(bars) == 3  # predicted, and two steps as they ran
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"predicted", "measured, step 3", "measured, step 4"}


@pytest.mark.parametrize(
    ("ranks", "overrides"),
    [
        (1, ["parallel.pipeline=1"]),  # without mpirun
        (3, ["parallel.pipeline=3"]),
    ],
)
def test_goes_on_otherwise_divided(
    base: tuple[Path, str], tmp_path: Path, ranks: int, overrides: list[str]
) -> None:
    out = only_first(base[0], tmp_path)
    command = [*arguments(tmp_path, *overrides), "--resume"]
    job = alone(*command) if ranks == 1 else run_python(ranks, *command, seconds=300)
    assert job.returncode == 0, job.stdout[-4000:]
    assert "resuming after epoch 1" in job.stdout + (job.stderr or "")
    name = folders.parts_name(2)
    assert_close(out / name, base[0] / name)


def test_goes_on_with_a_sharded_optimizer_and_without(
    base: tuple[Path, str], tmp_path: Path
) -> None:
    """Two pipelines of half the samples each, then one process; state is in the parts once."""
    out, name = only_first(base[0], tmp_path), folders.parts_name(2)
    two = "parallel={pipeline: 1, data: 2, microbatches: 2, schedule: gpipe, shard_optimizer: true}"
    size = "checkpoint.new_world_size=true"
    job = run_python(2, *arguments(tmp_path, two, "batch=32", size), "--resume", seconds=300)
    assert job.returncode == 0, job.stdout[-4000:]
    assert re.search(r"replica sums: [0-9.]+ ms a step, \d+% hidden behind computing", job.stdout)
    assert_close(out / name, base[0] / name)
    with Parts(out / name) as found, Parts(base[0] / name) as expected:
        files = set()
        for index, variable in enumerate(expected.state.variables):
            assert found.state.variables[index].path == variable.path
            if variable.path.endswith("_momentum"):
                files.add(found.manifest.variables[index].file)
                one, other = found.read(index), expected.read(index)
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())
    assert files == {"part-0.npz", "part-1.npz"}
    alone_again = [*arguments(tmp_path, "parallel=null", "epochs=3", size), "--resume"]
    last = alone(*alone_again)
    assert last.returncode == 0, last.stderr
    assert "resuming after epoch 2" in last.stdout + last.stderr


def test_goes_on_from_keras_files_and_to_them(base: tuple[Path, str], tmp_path: Path) -> None:
    """A single process goes on from parts, and a pipeline from its file; the numbers are alike."""
    out = only_first(base[0], tmp_path)
    job = alone(*arguments(tmp_path, "parallel=null"), "--resume")
    assert job.returncode == 0, job.stderr
    parts = tmp_path / "parts" / folders.parts_name(2)
    parts.parent.mkdir()
    convert.split(out / folders.file_name(2), parts)
    assert_close(parts, base[0] / folders.parts_name(2))

    convert.merge(out / folders.parts_name(1), tmp_path / "first.keras")
    again = f"checkpoint.resume={tmp_path / 'first.keras'}"
    shutil.rmtree(out)
    job = run_python(2, *arguments(tmp_path, again), seconds=300)
    assert job.returncode == 0, job.stdout[-4000:]
    name = folders.parts_name(2)
    for mine, theirs in zip(weights(out / name), weights(base[0] / name), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_checkpoint_of_another_job_is_refused(base: tuple[Path, str], tmp_path: Path) -> None:
    out = only_first(base[0], tmp_path)
    override = "optimizer={name: adam, learning_rate: 0.1}"
    message = "it has sgd/dense_0_bias_momentum of shape (48,), float32 where this job has adam/"
    job = run_python(2, *arguments(tmp_path, override), "--resume", seconds=120)
    assert job.returncode == ERROR_CODE, job.stdout
    assert f"checkpoint {out}/checkpoint-epoch-000001 is of another model" in job.stdout
    assert message in job.stdout
    assert job.stdout.count("ooodist: error: ") == 1
    assert "Traceback" not in job.stdout
    assert folders.read_state(out / folders.parts_name(1)).epoch == 1


def test_a_damaged_checkpoint_is_skipped(base: tuple[Path, str], tmp_path: Path) -> None:
    """And its place is taken by the one of the run that goes on, with its stages divided anew."""
    shutil.copytree(base[0], tmp_path / "out")
    newest = tmp_path / "out" / folders.parts_name(2)
    content = bytearray((newest / "part-1.npz").read_bytes())
    content[1000] ^= 1
    (newest / "part-1.npz").unlink()  # the best one has the same file
    (newest / "part-1.npz").write_bytes(content)
    divided = arguments(tmp_path, "parallel.split=[dense_1]")
    job = run_python(2, *divided, "--resume", seconds=120)
    assert job.returncode == 0, job.stdout[-4000:]
    assert f"checkpoint {newest} is damaged" in job.stdout
    assert "resuming after epoch 1" in job.stdout
    assert_close(newest, base[0] / newest.name)


def test_the_best_weights_are_kept_where_they_are(tmp_path: Path) -> None:
    """And restored at the end."""
    # As if the largest loss were the best: that of the first epoch.
    stopping = "{monitor: val_loss, mode: max, patience: 1, restore_best_weights: true}"
    command = arguments(tmp_path, f"early_stopping={stopping}", "epochs=5")
    job = run_python(2, *command, seconds=200)
    assert job.returncode == 0, job.stdout[-4000:]
    out = tmp_path / "out"
    assert folders.best_in(out) == out / folders.best_parts_name(1)
    best = weights(out / folders.best_parts_name(1))
    *_, (_, last) = folders.checkpoints(out)
    with Parts(last) as parts:
        for index, weight in enumerate(best):
            np.testing.assert_array_equal(parts.read_best(index), weight)
            assert (parts.read(index) != weight).any()
    for restored, weight in zip(
        keras.models.load_model(out / "model.keras").weights, best, strict=True
    ):
        np.testing.assert_array_equal(restored.numpy(), weight)


def test_a_killed_stage_ends_all_and_the_run_goes_on(tmp_path: Path) -> None:
    command = arguments(tmp_path, "epochs=200", "checkpoint.keep=1", "report.trace=0")
    job = start_mpi(2, *command)
    saved = tmp_path / "out"
    deadline = time.monotonic() + 200
    while not list(saved.glob("checkpoint-epoch-0*")):
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    victim = rank_of_job(job.pid, 1)
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    output, _ = job.communicate(timeout=30)
    assert time.monotonic() - killed < 10
    assert job.returncode != 0
    assert "rank 1" in output[output.index("mpirun noticed") :]
    again = run_python(2, *arguments(tmp_path, "epochs=1"), "--resume", seconds=300)
    assert again.returncode == 0, again.stdout
    assert "resuming after epoch" in again.stdout


@pytest.mark.timing("within 20 s, of which mpirun takes some to end")
def test_a_stage_that_stands_still_is_named(tmp_path: Path) -> None:
    command = arguments(tmp_path, "steps_per_epoch=100000", "timeout=3", "report.trace=0")
    job = start_mpi(2, *command, python=sys.executable)
    assert job.stdout is not None
    lines = []
    for line in job.stdout:
        lines.append(line)
        if "epoch 1/2 step" in line:
            break
    victim = rank_of_job(job.pid, 1)
    os.kill(victim, signal.SIGSTOP)
    stopped = time.monotonic()
    output, _ = job.communicate(timeout=60)
    with contextlib.suppress(ProcessLookupError):  # mpirun has ended it
        os.kill(victim, signal.SIGKILL)
    assert time.monotonic() - stopped < 20, output
    assert job.returncode != 0
    waits = (
        r"rank 0 waits at 0RECV_B\d since \d+ s: the message is not sent by rank 1"
        r"|rank 0 waits at the metrics since \d+ s: not all ranks have come to it"
        r"|rank 0 waits at the codes of gradients since \d+ s: not all of the 2 ranks"
    )
    assert re.search(waits, output), output


@pytest.mark.parametrize(
    ("ranks", "overrides", "message"),
    [
        (3, ["batch=64"], "2 x data 1, which is 2 processes, but 3 were started"),
        (2, ["parallel.memory_bytes=100"], " of weights and optimizer state"),
        (
            2,
            ["parallel.schedule=none.csv", "parallel.split=[dense_1]"],  # so nothing is measured
            "parallel.schedule none.csv cannot be read",
        ),
    ],
)
def test_what_a_person_gets_wrong(
    tmp_path: Path, ranks: int, overrides: list[str], message: str
) -> None:
    job = run_python(ranks, *arguments(tmp_path, *overrides), seconds=120)
    assert job.returncode == ERROR_CODE, job.stdout
    assert "ooodist: error: " in job.stdout
    assert message in job.stdout
    assert "Traceback" not in job.stdout


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch=30", "batch is 30, which cannot be split into 4 micro-batches"),
        ("engine=horovod", "engine is horovod, but pipelines run over MPI"),
        ("accumulate=2", "accumulate is 2, but parallel is given: a pipeline does not have it"),
        ("order.name=priority", "the order is priority, but parallel is given"),
        ("parallel.schedule=2f2b", "parallel.schedule is 2f2b"),
        ("parallel.chunks=2", "parallel.chunks is 2, but the schedule zb_h1 has 1 stage a rank"),
        ("parallel.pipelines=2", "there is no key parallel.pipelines (did you mean pipeline?)"),
    ],
)
def test_wrong_keys_end_before_anything_starts(tmp_path: Path, override: str, message: str) -> None:
    job = alone(*arguments(tmp_path, override))
    assert job.returncode == ERROR_CODE
    assert message in job.stderr
    assert "Traceback" not in job.stderr


def rank_of_job(launcher: int, rank: int) -> int:
    """The process of a rank that this mpirun has started."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher and f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables:
            return int(folder.name)
    raise AssertionError(f"rank {rank} does not run")
