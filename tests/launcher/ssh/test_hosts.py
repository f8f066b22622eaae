"""Jobs on four hosts of an emulated network, each with an sshd: real engines, faults, restarts.

These tests need root, as the emulated network does.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ooodist.checkpoint import folder as folders
from tests.fork_server import fast_python
from tests.jobs import ROOT, needs_built

from ..conftest import LOCAL, Launchers, launchers_of, needs_root, python, wait_until
from .hosts import SshHosts, on, ssh_hosts

# What the summary of a job of four ranks says, by engine.
SUMMARIES = {
    **{name: f"4 (engine {name}), batch 32 each" for name in ("collective", "horovod", "byteps")},
    "horovod-mpi": "4 (engine horovod), batch 32 each",
    "mpi": "2 pipelines, each of 2 stages on 2 ranks, 4 micro-batches, schedule 1f1b",
}
# A worker with a child.
FAMILY = """
import os, signal, subprocess, sys, time
subprocess.Popen(["sleep", "600"])
print(f"{os.getpid()} {os.environ['OOODIST_SIZE']} {os.environ['OOODIST_RESTART']} "
      f"{os.environ['TMPDIR']}", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    needs_root()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ssh_hosts(4, Path(folder)) as found:
        yield found


@pytest.fixture
def launchers(hosts: SshHosts, tmp_path: Path) -> Iterator[Launchers]:
    """Launchers on the first host."""
    with launchers_of(LOCAL, tmp_path, on(hosts.hosts[0])) as started:
        # Open MPI wants to be told twice that root may; ranks that wait leave the cores to others.
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        started.environment |= dict.fromkeys((*names, "OMPI_MCA_mpi_yield_when_idle"), "1")
        yield started


def options(hosts: SshHosts, engine: str, number: int = 4) -> list[str]:
    return ["--engine", engine, "--hosts", ",".join(hosts.names[:number]), "--ssh", hosts.ssh]


@pytest.mark.parametrize("engine", SUMMARIES)
def test_engine_trains_on_four_hosts(
    hosts: SshHosts, launchers: Launchers, tmp_path: Path, engine: str
) -> None:
    needs_built(engine.removesuffix("-mpi"))
    job = ["model={name: mlp, layers: [16]}", "batch=32", "epochs=1", "report.tensorboard=false"]
    if engine == "mpi":
        job.append("parallel={pipeline: 2, data: 2, microbatches: 4, schedule: 1f1b}")
    settings = [word for each in job for word in ("--set", each)]
    # One starts as a user's does, with an import of TensorFlow on each host.
    python = sys.executable if engine == "mpi" else fast_python()
    train = [python, "-m", "ooodist.train", *settings, "--output", str(tmp_path / "out")]
    logs = ["--output", str(tmp_path / "logs"), "--timeout", "200"]
    done = launchers.run(*options(hosts, engine), *logs, "--", *train, timeout=240)
    assert done.returncode == 0, done.stderr
    assert f"[0] {'pipeline' if engine == 'mpi' else 'workers'}" in done.stdout
    assert SUMMARIES[engine] in done.stdout
    assert "[launch] 4 workers on host0, host1, host2, host3" in done.stderr
    assert (tmp_path / "out" / "model.keras").is_file()
    for rank in range(4):
        assert (tmp_path / "logs" / f"{rank}.log").is_file()
    assert "epoch 1/1" in (tmp_path / "logs" / "0.log").read_text()


CALL = """
import socket, ooodist
def where():
    return socket.gethostname()
print(ooodist.run(where, hosts="HOSTS"))
"""


def test_a_function_of_a_program_runs_on_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/{hosts.ssh} "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [*on(hosts.hosts[0]), sys.executable, "-c", CALL.replace("HOSTS", ",".join(hosts.names))],
        cwd=work,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["['host0', 'host1']"], done.stderr
    assert not list(work.iterdir())  # where the pickles were


def started(launcher: subprocess.Popen[str], number: int) -> dict[int, list[str]]:
    """Of each worker, by rank: process id, number of workers, of the restart, temporary folder."""
    assert launcher.stdout is not None
    lines = [re.fullmatch(r"\[(\d+)\] (.*)\n", launcher.stdout.readline()) for _ in range(number)]
    return {int(line[1]): line[2].split() for line in lines if line}


@pytest.mark.parametrize("fault", ["rank", "launcher", "SIGTERM"])
def test_nothing_is_left_on_any_host(hosts: SshHosts, launchers: Launchers, fault: str) -> None:
    launcher = launchers.start(*options(hosts, "collective", 3), *python(FAMILY))
    workers = started(launcher, 3)
    if fault == "rank":
        os.kill(int(workers[2][0]), signal.SIGKILL)
    else:
        os.kill(launcher.pid, signal.SIGKILL if fault == "launcher" else signal.SIGTERM)
    _, stderr = launcher.communicate(timeout=20)
    code = {"rank": 137, "launcher": -9, "SIGTERM": 143}[fault]
    assert launcher.returncode == code, stderr
    if fault == "rank":
        assert "[launch] worker 2 on host2 ended with code 137 (128 + signal 9: Killed)" in stderr
    launchers.check_nothing_is_left()
    folders = [Path(worker[3]) for worker in workers.values()]
    wait_until(lambda: not any(map(Path.exists, folders)), lambda: f"left: {folders}")


def test_mpirun_that_is_killed_leaves_nothing(hosts: SshHosts, launchers: Launchers) -> None:
    script = FAMILY.replace("OOODIST_SIZE", "OMPI_COMM_WORLD_SIZE").replace("TMPDIR", "HOME")
    launcher = launchers.start(*options(hosts, "mpi", 3), *python(script))
    assert [worker[1] for worker in started(launcher, 3).values()] == ["3"] * 3
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.communicate(timeout=20)
    launchers.check_nothing_is_left()


@pytest.mark.parametrize("fault", ["rank", "SIGTERM"])
def test_ranks_of_mpirun_save_and_end_soon(
    hosts: SshHosts, launchers: Launchers, fault: str
) -> None:
    script = (
        "trap 'sleep 2.5; echo saved; exit 0' TERM; echo $$ $OMPI_COMM_WORLD_SIZE 0 -; "
        "while :; do sleep 0.1; done"
    )
    launcher = launchers.start(*options(hosts, "mpi", 3), "--", "sh", "-c", script)
    workers = started(launcher, 3)
    began = time.monotonic()
    if fault == "rank":
        os.kill(int(workers[2][0]), signal.SIGKILL)
    else:
        launcher.terminate()
    stdout, stderr = launcher.communicate(timeout=20)
    assert launcher.returncode == (137 if fault == "rank" else 143), stderr
    if fault == "rank":
        assert time.monotonic() - began < 5
    else:
        assert sorted(stdout.splitlines()) == [f"[{rank}] saved" for rank in range(3)]
    launchers.check_nothing_is_left()


def test_restarts_take_the_hosts_that_answer(hosts: SshHosts, launchers: Launchers) -> None:
    more = ["--restarts", "3", "--min-workers", "2"]
    launcher = launchers.start(*options(hosts, "collective", 3), *more, *python(FAMILY))
    workers = started(launcher, 3)
    assert [worker[1:3] for worker in workers.values()] == [["3", "0"]] * 3
    hosts.stop(hosts.hosts[1])
    os.kill(int(workers[1][0]), signal.SIGKILL)
    workers = started(launcher, 2)
    assert [worker[1:3] for worker in workers.values()] == [["2", "1"]] * 2
    hosts.start(hosts.hosts[1])
    os.kill(int(workers[0][0]), signal.SIGKILL)
    workers = started(launcher, 3)
    assert [worker[1:3] for worker in workers.values()] == [["3", "2"]] * 3
    launcher.terminate()
    _, stderr = launcher.communicate(timeout=20)
    assert launcher.returncode == 143
    assert "restart 1 of 3, as worker 1 on host1 ended with code 137" in stderr
    assert "without host host1: ssh: connect to host host1 port 22: Connection refused" in stderr
    assert "2 workers on host0, host2" in stderr
    assert "restart 2 of 3, as worker 0 on host0 ended with code 137" in stderr
    assert "SIGTERM: ending the job" in stderr


def test_training_goes_on_with_fewer_hosts_and_takes_one_back(
    hosts: SshHosts, launchers: Launchers, tmp_path: Path
) -> None:
    """With 3, 2 and 3 workers, each step has the same 96 samples: only float sums may differ."""
    job = ["model={name: mlp, layers: [16]}", "epochs=24", "report.tensorboard=false"]
    job += [
        "optimizer={name: sgd, learning_rate: {schedule: cosine_decay,"
        " initial_learning_rate: 0.05, decay_steps: 360}}"
    ]
    job += ["checkpoint={every_epochs: 5, every_steps: 10}"]
    disturbed, quiet = tmp_path / "disturbed", tmp_path / "quiet"

    def train(output: Path, batch: int) -> list[str]:
        settings = [word for each in [*job, f"batch={batch}"] for word in ("--set", each)]
        return [fast_python(), "-m", "ooodist.train", *settings, "--output", str(output)]

    def newest(output: Path) -> tuple[int, int]:
        return max((place for place, _ in folders.checkpoints(output)), default=(0, 0))

    def kill(rank: int, output: Path) -> tuple[int, int]:
        """Kills a worker; returns the place of the newest checkpoint."""
        is_rank = f"OOODIST_RANK={rank}".encode()
        (worker,) = [
            process
            for process, command in launchers.processes().items()
            if " -m ooodist.train " in command
            and command.startswith(sys.executable)
            and "ooodist.launch " not in command
            and is_rank in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        ]
        os.kill(worker, signal.SIGKILL)
        return newest(output)

    more = ["--restarts", "3", "--min-workers", "2", "--heartbeat", "12"]
    given = options(hosts, "collective", 3)
    launcher = launchers.start(*given, *more, "--", *train(disturbed, 32))
    wait_until(lambda: newest(disturbed)[1], lambda: "no checkpoint inside an epoch", 60)
    hosts.stop(hosts.hosts[1])
    place = kill(1, disturbed)
    wait_until(lambda: newest(disturbed) > place, lambda: "no newer checkpoint", 60)
    hosts.start(hosts.hosts[1])
    kill(0, disturbed)
    _, stderr = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, stderr
    assert "restart with 2 workers instead of 3: batch 48 instead of 32, 96 samples" in stderr
    assert "restart with 3 workers instead of 2: batch 32 instead of 48, 96 samples" in stderr
    subprocess.run(train(quiet, 96), check=True, timeout=120)
    for name in (disturbed, quiet):
        assert folders.latest(name)[1].epoch == 24
    # Metrics of training are those of the rest of an epoch where a restart was within it.
    losses = [
        [float(row["val_loss"]) for row in csv.DictReader((name / "history.csv").open())]
        for name in (disturbed, quiet)
    ]
    assert len(losses[0]) == 24
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_what_is_wrong_is_said_before_anything_starts(
    hosts: SshHosts, launchers: Launchers, tmp_path: Path
) -> None:
    given = options(hosts, "collective", 3)
    unknown = launchers.run(*given[:2], "--hosts", "host0,nowhere", *given[4:], "--", "true")
    assert "host nowhere: its name does not resolve here" in unknown.stderr
    missing = launchers.run(*given, "--", "no-such-program")
    assert "host host0 has no program no-such-program" in missing.stderr
    python = launchers.run(*given, "--python", "/nowhere/python", "--", "true")
    assert "host host0: sh: 1: exec: /nowhere/python: not found" in python.stderr
    assert "host host1: " in python.stderr
    hosts.stop(hosts.hosts[2])
    try:
        silent = launchers.run(*given, "--", "true")
    finally:
        hosts.start(hosts.hosts[2])
    assert "host host2: ssh: connect to host host2 port 22: Connection refused" in silent.stderr
    assert "2 of 3 workers have a host" in silent.stderr
    for done in (unknown, missing, python, silent):
        assert done.returncode == 2
        assert not done.stdout
        assert done.stderr.count("\n") == 1


def test_dry_run_and_secrets(hosts: SshHosts, launchers: Launchers) -> None:
    launchers.environment |= {"SECRET_TOKEN": "s3cret value", "NCCL_SOCKET_IFNAME": "eth0"}
    given = options(hosts, "collective", 2)
    dry = launchers.run(*given, "--dry-run", "--", "echo", "two words", "$HOME")
    first, second, inherited = dry.stdout.splitlines()
    assert first.startswith("worker 0 on host0: OOODIST_ENGINE=collective OOODIST_RANK=0")
    assert second.endswith("echo 'two words' '$HOME'")
    assert inherited.startswith("all: ")
    assert "NCCL_SOCKET_IFNAME=eth0" in inherited
    assert "s3cret" not in dry.stdout + dry.stderr
    # Words reach the program as they are, and the environment does, but in no command line.
    show = "ps ax | grep -c '[s]3cret value'; echo \"$SECRET_TOKEN\" $NCCL_SOCKET_IFNAME"
    done = launchers.run(*given, "--", "sh", "-c", show)
    assert sorted(done.stdout.splitlines()) == [
        *("[0] 0", "[0] s3cret value eth0", "[1] 0", "[1] s3cret value eth0")
    ], shlex.join([sys.executable, done.stderr])
