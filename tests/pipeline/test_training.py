"""fit and evaluate of a pipeline do what one process does."""

from __future__ import annotations

import re

import pytest

from tests.pipeline.jobs import run_mpi
from tests.pipeline.training_cases import CASES
from tests.pipeline.training_worker import SWAPS


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_trains_as_one_process(ranks: int) -> None:
    """In one job, as to start one takes longer than most cases."""
    names = [name for name, case in CASES.items() if case.pipeline * case.data == ranks]
    cases = [*names, SWAPS] if ranks == 2 else names
    job = run_mpi(ranks, "training_worker.py", *cases, seconds=900)
    assert job.returncode == 0, job.stdout[-4000:]
    for name in cases:
        for rank in range(ranks):
            assert f"held: {name}, rank {rank}" in job.stdout, job.stdout
    for name in names:
        # Callbacks see the same logs on all ranks. (mpirun may print a rank's end of line later.)
        shown = re.findall(f"history of {name}: ([^;]*);", job.stdout)
        assert shown == [shown[0]] * ranks
