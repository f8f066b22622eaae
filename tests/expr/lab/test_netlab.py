"""A job in the emulated network: real engines, and that nothing is left however it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.jobs import ROOT, needs_built
from tests.launcher.conftest import Launchers, forked, networks_of, python, wait_until
from tests.launcher.test_real_engines import PROGRAMS

GIVEN = ["-np", "2", "--engine", "collective", "--rate", "100Mbit"]
# A worker with a child, and one more that has left its process group.
FAMILY = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "601"], start_new_session=True)
print("started", flush=True)
ENDING
time.sleep(600)
"""
# What all ranks do in a job, until one of them finds the second file.
EXCHANGES = """
import sys
from pathlib import Path
import numpy as np
from ooodist.config import job as job_file
from ooodist.job import run
begun, end = map(Path, sys.argv[1:])

def exchange(engine):
    while not engine.gather(np.array([end.exists()], np.int32)).any():
        begun.touch()

sys.exit(run.on_all_ranks(job_file.load(None, []), exchange))
"""


@pytest.mark.parametrize("engine", PROGRAMS)
def test_engine(netlabs: Launchers, engine: str) -> None:
    needs_built(engine)
    program = PROGRAMS[engine].replace("ENDING", "")
    arguments = ["-np", "2", "--engine", engine, "--rate", "250Mbit", *forked(program)]
    done = netlabs.run(*arguments, timeout=120)
    assert done.returncode == 0, done.stderr
    sums = sorted(line for line in done.stdout.splitlines() if "sum" in line)
    assert sums == ["[0] sum [3.]", "[1] sum [3.]"], done.stderr


@pytest.mark.parametrize("engine", ["collective", "byteps"])  # Horovod's limit was 30 s always
def test_eight_seconds_without_a_network_end_no_job(
    netlabs: Launchers, tmp_path: Path, engine: str
) -> None:
    launcher = start_exchanges(netlabs, tmp_path, engine)
    set_link(launcher, "down")
    time.sleep(8)
    set_link(launcher, "up")
    (tmp_path / "end").touch()
    _, errors = launcher.communicate(timeout=100)
    assert launcher.returncode == 0, errors


@pytest.mark.parametrize("engine", ["collective", "horovod"])
def test_who_has_not_heard_from_whom(netlabs: Launchers, tmp_path: Path, engine: str) -> None:
    """One setting for all engines; BytePS says it itself (tests/engines/test_byteps_patch.py)."""
    launcher = start_exchanges(netlabs, tmp_path, engine, "--heartbeat", "4")
    set_link(launcher, "down")
    _, errors = launcher.communicate(timeout=100)
    assert launcher.returncode == 1, errors
    said = r"rank (\d) on host\1 ends, as it has not heard from rank (\d) on host\2 for \d+ s: "
    assert re.search(said, errors), errors
    assert "raise --heartbeat of the launcher, or OOODIST_HEARTBEAT_SECONDS (4 s)" in errors


def start_exchanges(
    netlabs: Launchers, folder: Path, engine: str, *options: str
) -> subprocess.Popen[str]:
    """A job of two workers that have begun to exchange, until there is a file "end"."""
    needs_built(engine)
    given = ["-np", "2", "--engine", engine, "--rate", "1Gbit", *options, *forked(EXCHANGES)]
    launcher = netlabs.start(*given, str(folder / "begun"), str(folder / "end"))
    begun = folder / "begun"
    wait_until(lambda: begun.exists() or launcher.poll() is not None, lambda: "no exchange", 120)
    assert launcher.poll() is None, launcher.communicate()
    return launcher


def set_link(launcher: subprocess.Popen[str], state: str) -> None:
    """Sets the link of host1 up or down."""
    (name,) = {Path(each).name for each in networks_of(launcher.pid) if each.endswith("-host1")}
    subprocess.run(["ip", "-n", name, "link", "set", "eth0", state], check=True)


def test_places_of_byteps(netlabs: Launchers) -> None:
    show = "import os, socket; print(socket.gethostname(), *os.sched_getaffinity(0))"
    netlabs.stand_in("byteps", __init__="", server=show)
    done = netlabs.run("-np", "2", "--engine", "byteps", "--rate", "1Gbit", *python(show))
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("[").split("] ", 1) for line in done.stdout.splitlines()]
    found = dict(lines)
    assert found["0"].startswith("host0 ")
    assert found["1"].startswith("host1 ")
    assert found["scheduler"] == found["server 0"] == found["0"]
    assert found["server 1"] == found["1"]


def test_shared_cores_are_said(netlabs: Launchers) -> None:
    core = str(min(os.sched_getaffinity(0)))
    show = python("import os; print(*os.sched_getaffinity(0))")
    done = netlabs.run(*GIVEN, "--cores", core, *show)
    assert sorted(done.stdout.splitlines()) == [f"[0] {core}", f"[1] {core}"]
    assert f"[launch] 2 workers share the cores [{core}]: " in done.stderr


def test_a_worker_fails(netlabs: Launchers) -> None:
    ending = "os.environ['OOODIST_RANK'] == '1' and sys.exit(3)"
    done = netlabs.run(*GIVEN, *python(FAMILY.replace("ENDING", ending)))
    assert done.returncode == 3
    assert "[launch] worker 1 exited with code 3: ending the job" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_launcher_is_ended(netlabs: Launchers, number: signal.Signals) -> None:
    launcher = start_family(netlabs)
    assert networks_of(launcher.pid)
    os.killpg(launcher.pid, number)  # as Ctrl-C in a terminal does
    _, stderr = launcher.communicate(timeout=20)
    if number == signal.SIGKILL:
        assert launcher.returncode == -number
        check_no_network(launcher.pid)
    else:
        assert launcher.returncode == 128 + number
        assert f"[launch] {number.name}: ending the job" in stderr


@pytest.mark.parametrize("after", [0.2, 0.3, 0.4])
def test_the_launcher_is_killed_while_it_builds(netlabs: Launchers, after: float) -> None:
    launcher = netlabs.start(*GIVEN, "--", "sleep", "600")
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(after)
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    netlabs.check_nothing_is_left()
    check_no_network(launcher.pid)


def start_family(netlabs: Launchers) -> subprocess.Popen[str]:
    """A launcher whose two workers and what they have started run."""
    launcher = netlabs.start(*GIVEN, *python(FAMILY.replace("ENDING", "pass")))
    assert launcher.stdout is not None
    assert [launcher.stdout.readline()[4:] for _ in range(2)] == ["started\n"] * 2
    return launcher


def check_no_network(launcher: int) -> None:
    wait_until(lambda: not networks_of(launcher), lambda: f"left: {networks_of(launcher)}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "2", "--engine", "collective", "--", "true"], "required: --rate"),
        ([*GIVEN, "--rate", "fast", "--", "true"], "rate 'fast': give a number with Kbit, Mbit"),
        ([*GIVEN, "--delay", "1", "--", "true"], "delay '1': give a number above 0 with us, ms"),
        ([*GIVEN, "--cores", "a", "--", "true"], "'a' is not a list of core numbers"),
        ([*GIVEN, "--cores", "4095", "--", "true"], "cores [4095]: this process may use"),
        ([*GIVEN, "--servers", "1", "--", "true"], "--servers is for --engine byteps"),
        (["-np", "9999", *GIVEN[2:], "--", "true"], "9999 hosts: give a number from 1 to 1000"),
        ([*GIVEN, "--", "no-such-command"], "command not found: no-such-command"),
    ],
)
def test_wrong_use(netlabs: Launchers, arguments: list[str], message: str) -> None:
    done = netlabs.run(*arguments)
    check_error(done, message)


def test_without_root(netlabs: Launchers) -> None:
    # As another user; the checkout and its Python need not be readable for that one.
    script = (
        "import os, sys; from expr.lab import netlab; "
        f"os.seteuid(65534); sys.exit(netlab.main({[*GIVEN, '--', '/bin/true']!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    check_error(done, "the emulated network needs root")


def test_without_iproute2(netlabs: Launchers) -> None:
    netlabs.environment["PATH"] = "/nowhere"
    done = netlabs.run(*GIVEN, "--", "/bin/true")
    check_error(done, "the emulated network needs ip and tc")
    assert "apt-get install iproute2" in done.stderr


def check_error(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_help(netlabs: Launchers) -> None:
    done = netlabs.run("--help")
    assert done.returncode == 0
    assert "python launch/netlab.py -np 2 --engine horovod --rate 250Mbit" in done.stdout
