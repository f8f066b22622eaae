"""Messages over real MPI: all arrive, in order, while ranks compute; who waits in vain says so."""

from __future__ import annotations

import re

from tests.pipeline.jobs import checks_in, run_mpi

CHECKS = checks_in("transport_worker.py")


def test_two_ranks() -> None:
    """In one job, as to start one takes longer than the checks."""
    job = run_mpi(2, "transport_worker.py", *CHECKS)
    assert job.returncode == 0, job.stdout[-4000:]
    for check in CHECKS:
        assert job.stdout.count(f"held: {check}") == 2, job.stdout
    said = r"rank 0 waits at 1RECV_B3 since \d+ s: the message is not sent by rank 1"
    assert re.search(said, job.stdout), job.stdout
    assert "raise timeout (2 s)" in job.stdout


def test_there_are_checks() -> None:
    assert len(CHECKS) == 10
