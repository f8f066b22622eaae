"""Each rank has the variables of its stages, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.holding_worker import CASES, REPLICATED
from tests.pipeline.jobs import run_mpi


@pytest.mark.parametrize(
    ("ranks", "cases"), [(2, [case for case in CASES if case != "sharded"]), (4, [*REPLICATED])]
)
def test_ranks_have_their_stages_alone(ranks: int, cases: list[str], tmp_path: Path) -> None:
    job = run_mpi(ranks, "holding_worker.py", tmp_path, *cases, seconds=300)
    assert job.returncode == 0, job.stdout[-4000:]
    for case in cases:
        for rank in range(ranks):
            assert f"held: {case}, rank {rank}" in job.stdout, job.stdout
