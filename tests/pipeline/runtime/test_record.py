"""Logs and codes of 2 x 2 ranks over real MPI: the same on all, and without a barrier."""

from __future__ import annotations

from tests.pipeline.jobs import checks_in, run_mpi

CHECKS = checks_in("record_worker.py")


def test_two_pipelines_of_two_ranks() -> None:
    """In one job, as to start one takes longer than the checks."""
    job = run_mpi(4, "record_worker.py", *CHECKS)
    assert job.returncode == 0, job.stdout[-4000:]
    for check in CHECKS:
        assert job.stdout.count(f"held: {check};") == 4, job.stdout


def test_there_are_checks() -> None:
    assert len(CHECKS) == 5
