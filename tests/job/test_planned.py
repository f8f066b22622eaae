"""Plans carried out by real workers, on every engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import ENGINES, needs_built, run_job

WORKER = Path(__file__).with_name("plan_worker.py")
OF_EACH_ENGINE = ["any_plan_leaves_the_numbers_alone"]
ALIKE_WITH_EACH = [
    "plans_that_are_made_here_are_carried_out",
    "plans_are_found_and_tried_while_it_trains",
    "what_is_too_short_to_plan_for_trains_by_default",
    "plans_that_do_not_fit_are_refused",
    "one_plan_file_for_all",
]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers_carry_out_plans(engine: str) -> None:
    needs_built(engine)
    checks = OF_EACH_ENGINE + (ALIKE_WITH_EACH if engine == "collective" else [])
    job = run_job(engine, 2, WORKER, *checks, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == checks


def test_four_workers_carry_out_plans() -> None:
    job = run_job("collective", 4, WORKER, *OF_EACH_ENGINE, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == OF_EACH_ENGINE
