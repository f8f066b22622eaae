"""Training on two and four real workers, on every engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import ENGINES, needs_built, run_job

WORKER = Path(__file__).with_name("worker.py")


def checks_of(what: str) -> list[str]:
    text = WORKER.with_name(f"checks_of_{what}.py").read_text()
    return re.findall(r"\n@check\ndef (\w+)", text)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers_pass_every_check(engine: str) -> None:
    needs_built(engine)
    checks = checks_of("numbers")
    assert len(checks) > 10
    if engine == "collective":  # what fit does is the same with each
        checks += checks_of("fit")
    job = run_job(engine, 2, WORKER, *checks, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == checks


def test_four_workers_equal_one_process() -> None:
    names = ["sgd_momentum", "adam_with_schedule_clipping_and_decay", "several_steps_a_launch"]
    job = run_job("collective", 4, WORKER, *names, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == names
