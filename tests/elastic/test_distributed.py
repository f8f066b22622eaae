"""Elastic training on two and four real workers, on every engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import ENGINES, needs_built, run_job

WORKER = Path(__file__).with_name("worker.py")


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers_pass_every_check(engine: str) -> None:
    needs_built(engine)
    checks = re.findall(r"\n@check\ndef (\w+)", WORKER.read_text())
    assert len(checks) > 4
    if engine != "collective":  # what is selected, and how, is the same with each
        checks = ["equals_one_process"]
    job = run_job(engine, 2, WORKER, *checks, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == checks


def test_four_workers_equal_one_process() -> None:
    names = ["equals_one_process", "a_rank_with_another_mask_is_caught"]
    job = run_job("collective", 4, WORKER, *names, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == names
