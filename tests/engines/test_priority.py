"""The priority of the threads that Horovod sends and receives with."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ooodist.engines import priority
from ooodist.engines.kinds.kind import NICENESS
from ooodist.errors import UserError
from ooodist.util.cores import threads
from tests.jobs import needs_built, run_job

WORKER = Path(__file__).with_name("priority_worker.py")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a priority above the usual needs root")


def run(variables: Mapping[str, str]) -> dict[str, int]:
    """What rank 0 prints: how many threads it has, and how many of them come first."""
    needs_built("horovod")
    job = run_job("horovod", 2, WORKER, seconds=120, variables=variables)
    assert job.returncode == 0, job.stdout
    return {name: int(value) for name, value in re.findall(r"(\w+) is (\d+)", job.stdout)}


@needs_root
def test_threads_that_exchange_come_first() -> None:
    """At least the library's own and that of its network; TensorFlow's stay as they are."""
    assert run({})["hurried"] == 0
    found = run({NICENESS: "-10"})
    assert 2 <= found["hurried"] < found["threads"]


def test_a_niceness_that_is_none_is_named() -> None:
    needs_built("horovod")
    job = run_job("horovod", 2, WORKER, seconds=120, variables={NICENESS: "high"})
    assert job.returncode != 0
    assert f"{NICENESS} is 'high'" in job.stdout


class Resting(threading.Thread):
    """A thread that does nothing until it may end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.may_end = threading.Event()

    def run(self) -> None:
        self.may_end.wait(60)

    @property
    def niceness(self) -> int:
        assert self.native_id is not None
        return os.getpriority(os.PRIO_PROCESS, self.native_id)


@pytest.fixture
def resting() -> Iterator[Resting]:
    thread = Resting()
    thread.start()
    yield thread
    thread.may_end.set()
    thread.join()


def test_only_those_are_changed(resting: Resting, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resting.native_id in threads()
    monkeypatch.setenv(NICENESS, "5")  # less than usual: that everybody may
    priority.let_come_first({resting.native_id, 1 << 22})  # the other one has ended
    assert resting.niceness == 5
    assert os.getpriority(os.PRIO_PROCESS, 0) == 0


def test_without_the_variable_nothing_changes(
    resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NICENESS, raising=False)
    priority.let_come_first({resting.native_id})
    assert resting.niceness == 0


def test_what_is_usual_counts_without_the_variable(
    resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NICENESS, raising=False)
    priority.let_come_first({resting.native_id}, 3)
    assert resting.niceness == 3
    monkeypatch.setenv(NICENESS, "5")
    priority.let_come_first({resting.native_id}, 3)
    assert resting.niceness == 5


def test_what_the_system_does_not_allow_is_logged(
    resting: Resting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setenv(NICENESS, "-10")
    with caplog.at_level("INFO", "ooodist"):
        priority.let_come_first({resting.native_id})
    assert "CAP_SYS_NICE" in caplog.text


@pytest.mark.parametrize("niceness", ["", "high", "1.5"])
def test_no_number(niceness: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NICENESS, niceness)
    with pytest.raises(UserError, match="it must be a number, -20 to 19"):
        priority.let_come_first(set())
