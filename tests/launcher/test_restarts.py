"""When a job is started again, and with which command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.checkpoint import folder as folders
from ooodist.launcher import restarts
from ooodist.launcher.output import Output
from ooodist.launcher.restarts import TRAINER, Ended, resuming
from ooodist.launcher.supervise import STOP_SIGNALS, Signals
from tests.fork_server import fast_python

from .conftest import Launchers, python, wait_until

KILLED = Ended(137, "worker 1 was killed by signal 9 (Killed)", 5.0)
LATER = Ended(137, KILLED.failure, 3600.0)
TERMINATED = Ended(143, "worker 0 exited with code 143", 5.0)
STALLED = Ended(1, "worker 0 exited with code 1", 5.0)
WRONG = Ended(2, "worker 0 exited with code 2", 5.0)
TOLD = Ended(143, "", 5.0)
WELL = Ended(0, "", 5.0)


@pytest.mark.parametrize(
    ("ends", "most", "code", "message"),
    [
        ([WELL], 3, 0, ""),
        ([KILLED], 0, 137, ""),
        ([KILLED, WELL], 3, 0, "restart 1 of 3, as worker 1 was killed"),
        ([TERMINATED, WELL], 3, 0, "restart 1 of 3, as worker 0 exited with code 143"),
        ([KILLED, TOLD], 3, 143, "restart 1 of 3"),
        ([WRONG], 3, 2, "no restart: the error above is for you to put right"),
        ([KILLED, STALLED, KILLED], 2, 137, "no restart: there were 2 (--restarts)"),
        ([KILLED] * 3, 9, 137, "no restart: 3 times in a row, within 60 s of the start: worker 1"),
        ([LATER] * 4 + [WELL], 9, 0, "restart 4 of 9"),
        ([KILLED, KILLED, LATER, KILLED, WELL], 9, 0, "restart 4 of 9"),
        ([KILLED, STALLED] * 4 + [WELL], 9, 0, "restart 8 of 9"),
    ],
)
def test_how_it_goes_on(
    ends: list[Ended], most: int, code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    left = list(ends)
    numbers = []

    def start(number: int) -> Ended:
        numbers.append(number)
        return left.pop(0)

    assert restarts.run(start, most, Output(None)) == code
    assert not left
    assert numbers == list(range(len(ends)))
    assert message in capfd.readouterr().err


@given(
    st.lists(st.sampled_from([KILLED, LATER, STALLED, TERMINATED]), min_size=9), st.integers(0, 8)
)
def test_never_more_often_than_allowed(ends: list[Ended], most: int) -> None:
    started = []

    def start(number: int) -> Ended:
        started.append(number)
        return ends[number]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Output, "say", lambda *_: None)
        restarts.run(start, most, Output(None))
    assert 1 <= len(started) <= most + 1


def test_what_resumes() -> None:
    command = ["python", "-m", "ooodist.train", "--config", "job.yaml"]
    again = ["--set", "checkpoint.restart=true"]
    assert resuming(command, None) == [*command, *again]
    fewer = ["--set", "workers=2"]
    assert resuming(command, 2) == [*command, *again, *fewer]
    assert resuming(["python", "mine.py"], 2) == ["python", "mine.py"]


def test_a_worker_that_is_killed_changes_no_bit(launchers: Launchers, tmp_path: Path) -> None:
    settings = ["model={name: mlp, layers: [8], dropout: 0.2}", "epochs=12", "steps_per_epoch=20"]
    given = [word for setting in settings for word in ("--set", setting)]

    def start(output: Path) -> subprocess.Popen[str]:
        train = [fast_python(), "-m", "ooodist.train", *given, "--output", str(output)]
        options = ["-np", "2", "--engine", "collective", "--restarts", "2", "--timeout", "120"]
        return launchers.start(*options, "--", *train)

    launcher = start(tmp_path / "killed")
    wait_until(lambda: folders.checkpoints(tmp_path / "killed"), lambda: "no checkpoint", 100)
    trainers = [key for key, command in launchers.processes().items() if TRAINER in command]
    workers = [key for key in trainers if os.getpgid(key) == key and key != launcher.pid]
    os.kill(max(workers), signal.SIGKILL)
    _, stderr = launcher.communicate(timeout=150)
    assert launcher.returncode == 0, stderr
    assert re.search(r"restart 1 of 2, as worker \d was killed by signal 9", stderr)
    assert re.search(r"resuming after .* from .*checkpoint", stderr)
    undisturbed = start(tmp_path / "undisturbed")
    assert undisturbed.wait(timeout=150) == 0
    states = [folders.latest(tmp_path / name)[1] for name in ("killed", "undisturbed")]
    assert states[0].epoch == states[1].epoch == 12
    assert states[0].fingerprint == states[1].fingerprint


def test_a_restart_leaves_no_descriptor(launchers: Launchers) -> None:
    # Codes in turns: the same failure three times in a row ends the restarts.
    counting = """
import os, sys
print(len(os.listdir(f"/proc/{os.getppid()}/fd")))
sys.exit(3 + int(os.environ["OOODIST_RESTART"]) % 2)
"""
    options = ["-np", "1", "--engine", "collective", "--restarts", "5", "--timeout", "20"]
    ended = launchers.run(*options, *python(counting))
    assert ended.returncode == 4, ended.stderr
    numbers = re.findall(r"(\d+)$", ended.stdout, re.MULTILINE)
    assert len(numbers) == 6
    assert len(set(numbers)) == 1, numbers


def test_a_signal_between_two_starts_counts() -> None:
    numbers = (signal.SIGCHLD, *STOP_SIGNALS)
    before = [signal.getsignal(number) for number in numbers]
    try:
        with closing(Signals()) as signals:
            assert signals.look() is None
            os.kill(os.getpid(), signal.SIGCHLD)
            assert signals.look() is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.look() == signals.look() == signals.stopped_by == signal.SIGTERM
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert signal.set_wakeup_fd(-1) == -1


def test_logs_go_on_after_a_restart(tmp_path: Path) -> None:
    output = Output(tmp_path)
    for line in (b"first", b"second"):
        output.begin_again()
        output.open_log("0")
        output.show(1, "0", line, whole=True)
        output.close_logs()
    assert (tmp_path / "0.log").read_bytes() == b"first\nsecond\n"


def test_a_restart_with_logs(launchers: Launchers, tmp_path: Path) -> None:
    job = "echo start $OOODIST_RESTART; test $OOODIST_RESTART = 1 || exit 3"
    options = ["-np", "1", "--engine", "local", "--restarts", "1", "--output", str(tmp_path)]
    ended = launchers.run(*options, "--", "sh", "-c", job)
    assert ended.returncode == 0, ended.stderr
    assert "restart 1 of 1, as worker 0 exited with code 3" in ended.stderr
    assert (tmp_path / "0.log").read_text() == "start 0\nstart 1\n"
