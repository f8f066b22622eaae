"""Training on two and four real workers, on every engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import ENGINES, needs_built, run_job

WORKER = Path(__file__).with_name("worker.py")


def num_checks() -> int:
    files = WORKER.parent.glob("checks_of_*.py")
    return sum(file.read_text().count("\n@check\n") for file in files)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers_pass_every_check(engine: str) -> None:
    needs_built(engine)
    job = run_job(engine, 2, WORKER, "all", seconds=600)
    passed = re.findall(r"passed (\w+)", job.stdout)
    assert job.returncode == 0, job.stdout[-6000:]
    assert len(passed) == num_checks() > 10, passed


@pytest.mark.parametrize("engine", ENGINES)
def test_four_workers_equal_one_process(engine: str) -> None:
    needs_built(engine)
    names = ["sgd_momentum", "adam_with_schedule_clipping_and_decay", "several_steps_a_launch"]
    job = run_job(engine, 4, WORKER, *names, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == names
