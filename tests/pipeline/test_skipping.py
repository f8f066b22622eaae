"""A pipeline leaves out steps whose gradients are not finite, on all ranks."""

from __future__ import annotations

from tests.pipeline.jobs import run_mpi
from tests.pipeline.skipping_worker import CASES


def test_all_is_as_if_there_were_no_such_step() -> None:
    job = run_mpi(2, "skipping_worker.py", *CASES, seconds=300)
    assert job.returncode == 0, job.stdout[-4000:]
    for case in CASES:
        for rank in range(2):
            assert f"held: {case}, rank {rank}" in job.stdout, job.stdout
    # Rank 0 alone says so.
    assert job.stdout.count("it is left out (on_nan: skip)") == len(CASES), job.stdout
