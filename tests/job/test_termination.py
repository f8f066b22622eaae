"""SIGTERM ends a job with a checkpoint, on all ranks; the resumed job is the undisturbed one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.parts import Parts
from ooodist.job.termination import SECONDS_TO_END
from ooodist.util.program import TERMINATED_CODE
from tests.fork_server import fast_python
from tests.jobs import ROOT, needs_built

JOB = [
    "model={name: mlp, layers: [16], dropout: 0.2}",
    "optimizer={name: adam, learning_rate: {schedule: cosine_decay,"
    " initial_learning_rate: 0.01, decay_steps: 9000}}",
    "batch=32",
    "report.tensorboard=false",
    "checkpoint={every_epochs: 4, every_steps: 7, every_minutes: 0.02}",
]


def start(engine: str, output: Path, *more: str) -> subprocess.Popen[str]:
    given = [f"--set={each}" for each in (*JOB, f"output={output}", *more)]
    program = [fast_python(), "-m", "ooodist.train", *given]
    if engine == "mpi":
        launch = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none"]
    else:
        launch = [sys.executable, "launch/local.py", "-np", "2", "--engine", engine, "--"]
    environment = {
        "PYTHONPATH": str(ROOT),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    return subprocess.Popen(
        [*launch, *program],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ranks_of(process: subprocess.Popen[str], output: Path) -> list[int]:
    """The processes that train, without the launcher and what they have started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        # python -m ooodist.train, or python -IS STUB -m ooodist.train
        is_rank = ["-m", "ooodist.train"] in (words[1:3], words[3:5])
        if is_rank and f"--set=output={output}" in words:
            found.append(int(folder.name))
    return found


def stopped_inside_an_epoch(
    engine: str, output: Path, more: list[str], *, to_launcher: bool
) -> str:
    """Runs a job, ends it by SIGTERM in the middle of an epoch, and returns what it printed."""
    process = start(engine, output, *more, "epochs=400")
    try:
        deadline = time.monotonic() + 200
        while not any(step for (_, step), _ in folders.checkpoints(output)):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        os.kill(process.pid if to_launcher else ranks_of(process, output)[0], signal.SIGTERM)
        text, _ = process.communicate(timeout=SECONDS_TO_END + 15)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert time.monotonic() - began < SECONDS_TO_END + 5, text
    assert process.returncode == TERMINATED_CODE, text
    assert "Traceback" not in text
    return text


CASES = [
    pytest.param("collective", [], True, id="collective, the launcher"),
    pytest.param("horovod", ["steps_per_execution=3"], False, id="horovod, one rank"),
    pytest.param("byteps", [], True, id="byteps, the launcher"),
    pytest.param(
        "mpi",
        ["parallel={pipeline: 2, microbatches: 4, schedule: 1f1b, split: [predictions]}"],
        False,
        id="pipeline, one rank",
    ),
]


@pytest.mark.parametrize(("engine", "more", "to_launcher"), CASES)
def test_a_job_that_is_asked_to_end_saves_first(
    engine: str, more: list[str], to_launcher: bool, tmp_path: Path
) -> None:
    needs_built(engine)
    if engine == "mpi":
        pytest.importorskip("mpi4py")
    text = stopped_inside_an_epoch(engine, tmp_path / "parts", more, to_launcher=to_launcher)
    said = re.search(r"SIGTERM: stopped after (.*); (\S+) is written; go on with --resume", text)
    assert said, text
    file, state = folders.latest(tmp_path / "parts")
    assert str(file) == said[2]
    assert state.where() == said[1]
    assert text.count("all ranks end after the next step") in ((2,) if to_launcher else (1,)), text
    assert not list((tmp_path / "parts").glob(".incomplete*"))
    if engine != "mpi":  # for the others, tests/test_train.py has jobs that go on
        return
    last = state.epoch + 2  # on a busy machine it trains for long before it is asked to end
    whole = start(engine, tmp_path / "whole", *more, f"epochs={last}")
    assert "Traceback" not in whole.communicate(timeout=200)[0]
    # The dropout is on the other rank then, as it may be if the stages are measured anew.
    others = [each.replace("predictions", "dropout_0") for each in more]
    again = start(engine, tmp_path / "parts", *others, f"epochs={last}", "checkpoint.resume=true")
    printed = again.communicate(timeout=200)[0]
    assert f"resuming after {state.where()} from {file}" in printed
    assert "metrics of this epoch begin" not in printed
    for name in ("history.csv", folders.parts_name(last)):
        assert content_of(tmp_path / "parts" / name) == content_of(tmp_path / "whole" / name)


def content_of(path: Path) -> list[object]:
    """The text of a file, or the digests of all variables of a checkpoint in parts."""
    if path.is_file():
        return [path.read_text()]
    with Parts(path) as parts:
        return [(entry.member, entry.digest) for entry in parts.manifest.variables]


# A rank whose others never answer: notices are told, and nothing comes of it.
ALONE = """
import signal, sys, time
from ooodist.job import termination

class Nobody:
    def tell(self, notice, value):
        print("told", flush=True)

termination.SECONDS_TO_END = 1.0
watch = termination.Termination()
with watch.watching():
    watch.started(1)
    if sys.argv[1] == "training":
        watch.training(Nobody())
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("state", "signals", "said", "seconds"),
    [
        ("before", 1, ["SIGTERM: ends; no step is lost"], 0.9),
        (
            "training",
            2,
            ["all ranks end after the next step", "a second SIGTERM: ends at once"],
            0.9,
        ),
        ("training", 1, ["all ranks end after the next step", "SIGTERM: no checkpoint within"], 5),
    ],
    ids=["before training", "a second SIGTERM", "too late"],
)
def test_a_rank_that_cannot_save_ends_all_the_same(
    state: str, signals: int, said: list[str], seconds: float
) -> None:
    command = [fast_python(), "-c", ALONE, state]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        if state == "training":
            assert process.stdout.readline() == "told\n"
        if signals == 2:
            process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=30)
    assert time.monotonic() - began < seconds
    assert process.returncode == TERMINATED_CODE
    lines = [line for line in text.splitlines() if "ooodist: " in line]
    for line, words in zip(lines, said, strict=True):
        assert line.startswith("ooodist: rank 1: ")
        assert words in line
