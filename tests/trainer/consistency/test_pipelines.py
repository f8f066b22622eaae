"""Pipelines whose ranks are not given the same callbacks, models and weights."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.jobs import run_python

WORKER = Path(__file__).with_name("worker.py")


def test_ranks_of_a_pipeline_that_are_given_different_things(tmp_path: Path) -> None:
    job = run_python(2, WORKER, tmp_path, seconds=300)
    assert job.returncode == 0, job.stdout[-6000:]
    assert job.stdout.count("held: ") == 2 * WORKER.read_text().count("(folder: Path) -> None")
