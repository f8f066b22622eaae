"""Some ranks of a job exchange arrays over real MPI, without TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pipeline.jobs import checks_in, run_python

WORKER = Path(__file__).with_name("communicator_worker.py")
CHECKS = checks_in(WORKER)


def test_three_ranks() -> None:
    """In one job, as to start one takes longer than the checks."""
    job = run_python(3, WORKER, *CHECKS, seconds=120, python=sys.executable)
    assert job.returncode == 0, job.stdout[-4000:]
    for check in CHECKS:
        assert job.stdout.count(f"held: {check};") == 3, job.stdout


def test_there_are_checks() -> None:
    assert len(CHECKS) == 4
