"""The program, as people start it: real processes, real engines."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest

from ooodist.checkpoint import folder as folders
from tests.fork_server import fast_python
from tests.jobs import ROOT, needs_built

PROGRAM = [sys.executable, "-m", "ooodist.train"]
SMALL = "model={name: mlp, layers: [8], dropout: 0.2}"
SECONDS_TO_END = 60.0
EPOCHS = 12  # of a job that is killed after the third


class Programs:
    """Starts programs of which nothing may be left at the end."""

    def __init__(self) -> None:
        self._mark = f"OOODIST_TEST_MARK={uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        name, value = self._mark.split("=")
        inherited = {key: text for key, text in os.environ.items() if "OOODIST" not in key}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**inherited, "PYTHONPATH": str(ROOT), name: value, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(
        self, *command: str, seconds: float = 200, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, **environment)
        output, _ = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(command, process.returncode, output)

    def processes(self) -> list[int]:
        """All that run and were started by this test."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has just ended
                continue
        return found

    def wait_until_all_have_ended(self) -> None:
        deadline = time.monotonic() + SECONDS_TO_END
        while self.processes():
            assert time.monotonic() < deadline, f"still running: {self.processes()}"
            time.sleep(0.1)

    def kill_all(self) -> None:
        for process in self.processes():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def programs() -> Iterator[Programs]:
    started = Programs()
    try:
        yield started
        started.wait_until_all_have_ended()
    finally:
        started.kill_all()


def launched(engine: str, *command: str, size: int = 2) -> list[str]:
    launcher = [sys.executable, "launch/local.py", "-np", str(size), "--engine", engine]
    return [*launcher, "--timeout", "150", "--", *command]


def forked() -> list[str]:
    """``PROGRAM``, where its start is not what is tested."""
    return [fast_python(), "-m", "ooodist.train"]


def settings(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def errors(output: str) -> list[str]:
    return re.findall(r"ooodist: error: .*", output)


PATIENT = """if True:
    import sys
    from ooodist.train import main
    from ooodist.util import program
    program.SECONDS_FOR_THE_FIRST = 600  # however busy the machine is, rank 0 ends before
    sys.exit(main(sys.argv[1:]))
"""


def test_a_mistake_that_all_ranks_make_is_printed_once(programs: Programs) -> None:
    needs_built("mpi")
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
    job = ("--set", "parallel={pipeline: 1}")
    done = programs.run(*mpirun, fast_python(), "-c", PATIENT, *job)
    assert done.returncode == 2
    assert done.stdout.count("workers is 1, but engine mpi runs 2") == 1, done.stdout


def test_a_pipeline_without_mpirun_is_told_how_many_ranks_it_needs(programs: Programs) -> None:
    needs_built("mpi")
    done = programs.run(*forked(), "--set", "parallel={pipeline: 2, data: 2}")
    assert done.returncode == 2
    assert "start it with: mpirun -np 4 python -m ooodist.train" in done.stdout


def test_help_and_print_config(programs: Programs, tmp_path: Path) -> None:
    text = programs.run(*PROGRAM, "--help").stdout
    for command in (
        "python -m ooodist.launch",
        "horovodrun -np 2 python",
        "--mpi",
        "bpslaunch python3",
    ):
        assert command in text
    file = tmp_path / "job.yaml"
    file.write_text("batch: 32\nmodel: {name: mlp}\n")
    arguments = ["--engine", "horovod", "--output", "x y", "--resume", "--print-config"]
    printed = programs.run(
        *forked(), "--config", str(file), *settings("epochs=3"), *arguments
    ).stdout
    for line in ("engine: horovod", "batch: 32", "epochs: 3", "output: x y", "  resume: true"):
        assert f"{line}\n" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nowhere.yaml"], "--config nowhere.yaml cannot be read: "),
        (["--batch", "3"], "unrecognized arguments: --batch 3; python -m ooodist.train --help"),
        (settings("bacth=3"), "there is no key bacth (did you mean batch?)"),
        (settings("batch=0"), "batch is 0; it must be a whole number, at least 1"),
        (settings("epochs=ten"), "epochs is ten; it must be a whole number"),
    ],
)
def test_mistakes_in_the_job_end_it_at_once(
    arguments: list[str], message: str, programs: Programs
) -> None:
    start = time.monotonic()
    result = programs.run(*PROGRAM, *arguments)
    assert result.returncode == 2
    assert result.stdout.splitlines() == [
        f"ooodist: error: {message}" + result.stdout.split(message)[1].rstrip("\n")
    ]
    assert time.monotonic() - start < 10  # 0.3 s on an idle machine


def test_an_engine_that_is_not_built_says_how_to_build_it(
    programs: Programs, tmp_path: Path
) -> None:
    broken = tmp_path / "horovod"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('built for another TensorFlow')")
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}
    result = programs.run(*forked(), "--engine", "horovod", **environment)
    assert result.returncode == 2
    (error,) = errors(result.stdout)
    assert "horovod" in error
    assert "ooodist-engines horovod" in error


def test_a_port_that_is_taken_is_named(programs: Programs, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = {"worker": [address, "127.0.0.1:9"]}
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
        arguments = [*settings(SMALL), "--output", str(tmp_path)]
        result = programs.run(*forked(), *arguments, TF_CONFIG=config)
    assert result.returncode == 2, result.stdout
    (error,) = errors(result.stdout)
    assert f"rank 0 cannot listen on port {address[10:]}, which TF_CONFIG gives it" in error
    assert "Traceback" not in result.stdout


def test_wrong_jobs_end_on_both_ranks_with_one_message(programs: Programs, tmp_path: Path) -> None:
    script = [fast_python(), "-m", "tests.wrong_jobs", str(tmp_path)]
    output = programs.run(*launched("collective", *script)).stdout
    expected = {
        "no data": "nowhere.npz does not exist",
        "empty data": "empty.npz",
        "unreadable data": "unreadable.npz",
        "batch too large": "batch",
        "model unlike data": "model gpt takes sequences of integer tokens",
        "order": "first_k has k = 99, but this model has 2 layers",
        "unwritable output": "output is /dev/null/runs, where nothing can be written",
        "truncated checkpoint": "truncated.keras is damaged",
        "nothing to resume": "there is no checkpoint in",
        "one rank has another job": "the job (--config, --set) differs between ranks",
        "loss unlike labels": "loss cannot be computed for the labels of data digits (int32 (64,))",
        "metric unlike labels": "metrics: f1_score cannot be computed for the labels of data",
        "one rank cannot build": "rank 1: RuntimeError: no luck",
        "loss is no number": "is not finite (loss ",
    }
    for name, part in expected.items():
        messages = re.findall(rf"\[(\d)\] WRONG {name}: (.*)", output)
        assert sorted(rank for rank, _ in messages) == ["0", "1"], output
        assert messages[0][1] == messages[1][1]
        assert part in messages[0][1]
    assert sorted(re.findall(r"\[(\d)\] END", output)) == ["0", "1"]


@pytest.mark.parametrize(
    ("engine", "overrides", "message"),
    [
        ("collective", ["workers=3"], "workers"),
        ("collective", ["optimizer.learning_rate=1e30"], "is not finite (loss "),
        ("horovod", ["model=tests.wrong_jobs:fails_on_rank_1"], "rank 1: RuntimeError: no luck"),
        ("byteps", ["optimizer.learning_rate=1e30"], "is not finite (loss "),
    ],
)
def test_a_wrong_job_ends_the_program_on_every_rank(
    engine: str, overrides: list[str], message: str, programs: Programs, tmp_path: Path
) -> None:
    needs_built(engine)
    arguments = [*settings(SMALL, *overrides), "--output", str(tmp_path)]
    result = programs.run(*launched(engine, *forked(), *arguments))
    assert result.returncode == 2, result.stdout
    (found,) = errors(result.stdout)  # which all ranks share
    assert message in found
    programs.wait_until_all_have_ended()


def test_data_that_breaks_on_one_rank_ends_the_job_with_few_lines(
    programs: Programs, tmp_path: Path
) -> None:
    data = "data={name: function, function: 'tests.wrong_jobs:breaks_on_rank_1', num_classes: 3}"
    arguments = [*settings(SMALL, data, "batch=8"), "--output", str(tmp_path)]
    result = programs.run(*launched("collective", *forked(), *arguments))
    assert result.returncode == 2, result.stdout
    found = errors(result.stdout)
    first = "rank 1: data function: a batch cannot be read: ValueError: sample 333 is broken ("
    assert first in found[0]
    victim = "rank 0 ends, as another rank is gone; that rank says why ("
    assert all(victim in error for error in found[1:])
    assert "Traceback" not in result.stdout
    assert len(result.stdout.splitlines()) < 30, result.stdout


KILLED = settings(
    SMALL,
    "data.augment=true",
    "batch=32",
    f"epochs={EPOCHS}",
    "optimizer={name: adam, learning_rate: 0.01}",
    "order={name: first_k, k: 1}",
    "steps_per_execution=4",
    "report.tensorboard=false",
    "timeout=10",
    "checkpoint.every_steps=8",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The output of a run that nothing interrupts; sums of two are the same with each engine."""
    folder = tmp_path_factory.mktemp("whole")
    programs = Programs()
    try:
        program = launched("collective", *forked(), *KILLED)
        job = programs.run(*program, "--output", str(folder))
        assert job.returncode == 0, job.stdout
        assert "[1] epoch" not in job.stdout
        yield folder
    finally:
        programs.kill_all()


@pytest.mark.parametrize("engine", ["collective", "horovod", "byteps"])
def test_a_killed_job_ends_and_its_resume_is_the_uninterrupted_run(
    engine: str, programs: Programs, tmp_path: Path, whole: Path
) -> None:
    needs_built(engine)
    parts = tmp_path / "parts"
    program = launched(engine, *forked(), *KILLED)
    second = programs.start(*program, "--output", str(parts))
    wait_for_checkpoints(parts, 3, second)
    victim = next(pid for pid in programs.processes() if is_rank_1(pid))
    os.kill(victim, signal.SIGKILL)
    programs.wait_until_all_have_ended()
    assert second.wait() != 0
    state = folders.latest(parts)[1]
    assert state.epoch < EPOCHS

    third = programs.run(*program, "--output", str(parts), "--resume")
    assert third.returncode == 0, third.stdout
    assert f"resuming after {state.where()} from" in third.stdout
    assert re.search(rf"\[0\] workers +2 \(engine {engine}\)", third.stdout)
    assert (parts / "history.csv").read_text() == (whole / "history.csv").read_text()
    expected, found = (folders.latest(folder)[1] for folder in (whole, parts))
    assert found.fingerprint == expected.fingerprint
    keras.models.load_model(parts / "model.keras")


def test_a_rank_that_hangs_ends_the_job(programs: Programs, tmp_path: Path) -> None:
    job = settings(SMALL, "epochs=1000", "timeout=3", "report.tensorboard=false")
    program = launched("collective", *PROGRAM, *job, "--output", str(tmp_path))
    process = programs.start(*program)
    wait_for_checkpoints(tmp_path, 2, process)
    os.kill(next(pid for pid in programs.processes() if is_rank_1(pid)), signal.SIGSTOP)
    start = time.monotonic()
    output, _ = process.communicate(timeout=SECONDS_TO_END)
    assert time.monotonic() - start < SECONDS_TO_END
    # While a checkpoint is saved, the limit is ten times as long: TensorFlow, or the launcher after
    # 5 s, notices first. Where both notice at once, the code is either's.
    killed = r"\[launch\] worker 1 \(process .* has been stopped \(by SIGSTOP or Ctrl-Z\)"
    is_killed = re.search(killed, output) is not None
    if process.returncode == 137:
        assert is_killed
    else:
        assert process.returncode == 1, output
        # (The stopped rank may find the same of itself when the launcher lets it go on to end it.)
        (error,) = [line for line in errors(output) if "rank 0 " in line]
        no_progress = r"rank 0 \(engine collective\) has made no progress for .*raise timeout \(3 s"
        no_heartbeat = "rank 0 on .* ends, as it has not heard from rank 1 on "
        assert re.search(f"{no_progress}|{no_heartbeat}", error)
        is_named = "[launch] worker 1 is stopped (by SIGSTOP, Ctrl-Z or a debugger)" in output
        assert is_named or is_killed
    assert "Traceback" not in output


def test_horovod_names_what_a_rank_waits_for(programs: Programs, tmp_path: Path) -> None:
    needs_built("horovod")
    data = "data={name: function, function: 'tests.stuck_data:waits', num_classes: 3}"
    job = settings(SMALL, data, "epochs=2", "timeout=4", "batch=32", "report.tensorboard=false")
    done = programs.run(*launched("horovod", *forked(), *job, "--output", str(tmp_path)))
    assert done.returncode == 1
    assert re.search(r"Missing ranks:\n\[0\] 1: \[exchange\S*", done.stdout), done.stdout
    for rank in (0, 1):
        message = rf"rank {rank} \(engine horovod\) has made no progress .* epoch 2, step 1 began"
        assert len(re.findall(message, done.stdout)) == 1
    # The one that waits for its data, and the one that waits for that rank.
    stacks = [(tmp_path / f"stacks-rank-{rank}.txt").read_text() for rank in (0, 1)]
    assert "in samples" in stacks[1]
    assert "in samples" not in stacks[0]


def wait_for_checkpoints(folder: Path, number: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while len(folders.checkpoints(folder)) < number:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_rank_1(process: int) -> bool:
    try:
        content = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"OOODIST_RANK=1" in content


def test_bert_is_pretrained_by_two_workers_as_by_one(programs: Programs, tmp_path: Path) -> None:
    words = settings(
        "model={name: bert_12, layers: 1, width: 16, heads: 2, dropout: 0, attention_dropout: 0}",
        f"data={{name: masked_text, vocabulary: {tmp_path / 'vocabulary.txt'}, length: 32, "
        "vocabulary_size: 500}",
        *("epochs=1", "steps_per_epoch=10", "report.tensorboard=false"),
    )
    losses = []
    for size in (1, 2):
        output = tmp_path / str(size)
        batch = settings(f"batch={16 // size}")
        train = [*forked(), *words, *batch, "--output", str(output)]
        command = [*train, "--engine", "local"] if size == 1 else launched("collective", *train)
        done = programs.run(*command, CUDA_VISIBLE_DEVICES="-1")
        assert done.returncode == 0, done.stdout
        with (output / "history.csv").open(newline="") as file:
            (row,) = csv.DictReader(file)
        losses.append([float(row[each]) for each in ("loss", "masked_loss", "next_loss")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    loss, masked, follows = losses[0]
    assert loss == pytest.approx(masked + follows, rel=1e-5)


def test_data_that_differ_end_the_job(programs: Programs, tmp_path: Path) -> None:
    """As where one host has fewer files, or a vocabulary of its own."""
    data = "data={name: function, function: 'tests.wrong_jobs:differs_by_rank', num_classes: 2}"
    words = settings(SMALL, data, "batch=8", "epochs=1")
    done = programs.run(*launched("collective", *forked(), *words, "--output", str(tmp_path)))
    assert done.returncode == 2, done.stdout
    (error,) = errors(done.stdout)
    assert "the data (its samples, classes or vocabulary) differs between ranks" in error


def test_nothing_is_imported_in_vain() -> None:
    """The quick start installs no MPI: neither training nor planning may import it. SciPy's solvers
    are for jobs that are measured or planned: they would start half a second later."""
    modules = "ooodist.job.run, ooodist.job.measurement, ooodist.pipeline.layers.measure"
    vain = "{'mpi4py', 'scipy.optimize', 'scipy.stats'}"
    program = f"import sys, {modules}\nassert not {vain} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
