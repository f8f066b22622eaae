"""Elastic training on two and three real workers, on every engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import ENGINES, needs_built, run_job

WORKER = Path(__file__).with_name("worker.py")
BY_THREE = "equals_one_process"  # on collective


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers_pass_every_check(engine: str) -> None:
    needs_built(engine)
    checks = re.findall(r"\n@check\ndef (\w+)", WORKER.read_text())
    assert len(checks) > 4
    if engine == "collective":
        checks.remove(BY_THREE)
    else:  # what is selected, and how, is the same with each
        checks = [BY_THREE]
    run_checks(engine, 2, checks)


def test_three_workers_equal_one_process() -> None:
    run_checks("collective", 3, [BY_THREE])


def run_checks(engine: str, size: int, checks: list[str]) -> None:
    job = run_job(engine, size, WORKER, *checks, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == checks
