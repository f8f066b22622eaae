"""A process that was stopped is killed, whoever started it: the launcher or a runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from ooodist.launcher.ssh import stopped
from ooodist.launcher.ssh.runner import Orders

from ..conftest import Launchers, wait_until

STOPS_ITSELF = "kill -STOP $$; sleep 600"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_states(sleeper: subprocess.Popen[bytes]) -> None:
    assert stopped.state(os.getpid()) == "R"
    wait_until(lambda: stopped.state(sleeper.pid) == "S", lambda: "it does not sleep")
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_until(lambda: stopped.state(sleeper.pid) == "T", lambda: "it is not stopped")
    sleeper.kill()
    sleeper.wait()
    assert stopped.state(sleeper.pid) == ""


def test_one_that_goes_on_in_time_is_left_alone(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(stopped, "STOPPED_SECONDS", 1.0)
    waiting = threading.Thread(target=stopped.wait_until_stopped, args=[sleeper.pid], daemon=True)
    waiting.start()
    for _ in range(4):
        os.kill(sleeper.pid, signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(sleeper.pid, signal.SIGCONT)
        time.sleep(0.1)
    assert waiting.is_alive()
    os.kill(sleeper.pid, signal.SIGSTOP)
    waiting.join(10)
    assert not waiting.is_alive()


def said(stderr: str, name: str) -> bool:
    """Whether it says which process was stopped, why that matters, and what to do."""
    return all(
        part in stderr
        for part in (f"{name} (process ", "has been stopped (by SIGSTOP", "killing it", "SIGCONT")
    )


@pytest.mark.timing(
    "within 15 s, of which five are waited; the rest are starts and ends of processes"
)
def test_a_stopped_worker_ends_the_job_and_is_named(launchers: Launchers) -> None:
    script = f'test "$OOODIST_RANK" = 1 && {{ {STOPS_ITSELF}; }}; exec sleep 600'
    began = time.monotonic()
    done = launchers.run("-np", "3", "--engine", "collective", "--", "sh", "-c", script)
    assert stopped.STOPPED_SECONDS - 1 < time.monotonic() - began < 15
    assert done.returncode == 137
    assert said(done.stderr, "[launch] worker 1"), done.stderr
    assert "[launch] worker 1 was killed by signal 9 (Killed): ending the job" in done.stderr
    assert "worker 0" not in done.stderr


def test_a_job_whose_workers_are_all_stopped_is_paused(launchers: Launchers) -> None:
    # They do not go on at the same moment.
    script = "(sleep $((6 + OOODIST_RANK)); kill -CONT $$) & kill -STOP $$; echo goes on"
    done = launchers.run("-np", "2", "--engine", "collective", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] goes on", "[1] goes on"]


@pytest.mark.parametrize("place", ["ssh", "mpirun"])
def test_on_other_hosts_and_below_mpirun(place: str, tmp_path: Path) -> None:
    command = ["sh", "-c", STOPS_ITSELF]
    start = [sys.executable, "-m", "ooodist.launcher.ssh.runner"]
    orders = ""
    if place == "ssh":
        orders = json.dumps(asdict(Orders(command, {}, str(tmp_path), []))) + "\n"
    else:
        start += ["{}", *command]
    with subprocess.Popen(
        start,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMPI_COMM_WORLD_RANK": "1"},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(orders)
        process.stdin.flush()  # and stays open: its end would mean that the launcher is gone
        code = process.wait(20)
        process.stdin.close()
        assert process.stderr is not None
        stderr = process.stderr.read()
    assert code == (137 if place == "ssh" else -signal.SIGKILL)
    name = "the process on" if place == "ssh" else "rank 1 on"
    assert said(stderr, f"ooodist: error: {name} {os.uname().nodename}"), stderr


def test_ranks_of_mpirun_get_sigterm_alone_and_their_time(launchers: Launchers) -> None:
    # mpirun kills what has not ended 1 s after its own SIGTERM.
    launchers.environment |= dict.fromkeys(
        ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"
    )
    script = "trap 'sleep 2.5; echo saved; exit 0' TERM; echo runs; while :; do sleep 0.1; done"
    launcher = launchers.start("-np", "2", "--engine", "mpi", "--", "sh", "-c", script)
    assert launcher.stdout is not None
    for _ in range(2):
        assert launcher.stdout.readline().endswith("runs\n")
    launcher.terminate()
    stdout, stderr = launcher.communicate(timeout=20)
    assert launcher.returncode == 143, stderr
    assert sorted(stdout.splitlines()) == ["[0] saved", "[1] saved"]
