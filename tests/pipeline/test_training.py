"""fit and evaluate of a pipeline do what one process does."""

from __future__ import annotations

import re

import pytest

from tests.pipeline.jobs import run_mpi
from tests.pipeline.training_worker import CASES


@pytest.mark.parametrize("name", CASES)
def test_trains_as_one_process(name: str) -> None:
    case = CASES[name]
    ranks = case.pipeline * case.data
    job = run_mpi(ranks, "training_worker.py", name, seconds=300)
    assert job.returncode == 0, job.stdout
    for rank in range(ranks):
        assert f"held: {name}, rank {rank}" in job.stdout
    # Callbacks see the same logs on all ranks. (mpirun may print a rank's end of line later.)
    shown = re.findall("history: ([^;]*);", job.stdout)
    assert shown == [shown[0]] * ranks
