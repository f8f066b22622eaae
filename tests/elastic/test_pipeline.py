"""Elastic training in a pipeline does what one process does with the same selections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.pipeline_worker import CASES, SHARE
from tests.pipeline.jobs import run_python

WORKER = Path(__file__).with_name("pipeline_worker.py")


@pytest.mark.parametrize("ranks", [2, 4])
def test_trains_as_one_process_with_the_same_selections(ranks: int) -> None:
    """In one job, as to start one takes longer than most cases."""
    names = [name for name, case in CASES.items() if case.pipeline * case.data == ranks]
    assert len(names) > 1
    if ranks == 2:
        names.append(SHARE)
    job = run_python(ranks, WORKER, *names, seconds=600)
    assert job.returncode == 0, job.stdout[-4000:]
    for name in names:
        for rank in range(ranks):
            assert f"held: {name}, rank {rank}" in job.stdout, job.stdout
