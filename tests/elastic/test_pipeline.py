"""Elastic training in a pipeline does what one process does with the same selections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.jobs import run_python

WORKER = Path(__file__).with_name("pipeline_worker.py")
RANKS = {
    "auto": 2,
    "batch_norm": 2,
    "dropout": 2,
    "chunks": 2,
    "tied": 2,
    "clipped": 2,
    "everything": 2,
    "four_stages": 4,
    "replicas": 4,
}


@pytest.mark.parametrize("name", RANKS)
def test_trains_as_one_process_with_the_same_selections(name: str) -> None:
    job = run_python(RANKS[name], WORKER, name, seconds=300)
    assert job.returncode == 0, job.stdout
    for rank in range(RANKS[name]):
        assert f"held: {name}, rank {rank}" in job.stdout
