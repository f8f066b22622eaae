"""Processes of one job on one host count themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

import ooodist
from ooodist import engines
from ooodist.engines.local import LocalEngine
from ooodist.engines.local_rank import LocalRank

CLAIMS = """
import sys
from ooodist.engines.local_rank import LocalRank
place = LocalRank(sys.argv[1])
print(place.rank, flush=True)
sys.stdin.read()
"""


@contextmanager
def processes(job: str, number: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many, which hold their places until their input ends or they are killed."""
    command = [sys.executable, "-c", CLAIMS, job]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(number)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def read_rank(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_processes_that_start_together_have_places_of_their_own() -> None:
    with processes(f"test-{uuid4()}", 4) as started:
        assert sorted(map(read_rank, started)) == [0, 1, 2, 3]


def test_the_place_of_a_process_that_was_killed_is_free() -> None:
    job = f"test-{uuid4()}"
    with processes(job, 1) as [first]:
        assert read_rank(first) == 0
        second = LocalRank(job)
        assert second.rank == 1
        first.kill()
        first.wait()
        assert LocalRank(job).rank == 0
        assert second.rank == 1


def test_another_job_begins_at_0() -> None:
    job = f"test-{uuid4()}"
    held = [LocalRank(job), LocalRank(f"{job}-other"), LocalRank(job)]
    assert [place.rank for place in held] == [0, 0, 1]


def test_a_number_of_ranks_that_is_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine()
    monkeypatch.setattr(engines, "_current", engine)
    assert (ooodist.local_rank(), ooodist.local_size()) == (0, 1)
    engine.local_size = None  # as with bpslaunch
    with pytest.raises(ooodist.UserError, match="start the job by python -m"):
        ooodist.local_size()
