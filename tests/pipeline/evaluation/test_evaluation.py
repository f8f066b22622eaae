"""evaluate and predict of a pipeline on two ranks; see ``worker.py``."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.jobs import checks_in, run_python

WORKER = Path(__file__).parent / "worker.py"
CHECKS = checks_in(WORKER)


def test_two_ranks() -> None:
    """In one job, as to start one takes longer than most checks."""
    job = run_python(2, WORKER, *CHECKS, seconds=300)
    assert job.returncode == 0, job.stdout[-4000:]
    for check in CHECKS:
        assert job.stdout.count(f"held: {check}") == 2, job.stdout


def test_there_are_checks() -> None:
    assert len(CHECKS) == 11
