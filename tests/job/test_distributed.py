"""Training on two and four real workers, on every engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import ENGINES, needs_built, run_job

WORKER = Path(__file__).with_name("worker.py")
# What an engine could do wrong: what it exchanges, and in which order. All else is the same with
# each; tests/engines has types and gathering.
OF_EACH_ENGINE = [
    "several_steps_a_launch",
    "embeddings_and_tied_weights",
    "synchronized_batch_norm",
    "steps_that_xla_compiles",
    "orders_and_buckets_and_credit",
    "tape_in_a_loop_of_ones_own",
    "steps_that_are_not_finite_are_left_out",
]


def checks_of(what: str) -> list[str]:
    text = WORKER.with_name(f"checks_of_{what}.py").read_text()
    return re.findall(r"\n@check\ndef (\w+)", text)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers_pass_every_check(engine: str) -> None:
    needs_built(engine)
    checks = OF_EACH_ENGINE
    if engine == "collective":
        checks = checks_of("numbers") + checks_of("fit")
        assert set(OF_EACH_ENGINE) < set(checks)
    job = run_job(engine, 2, WORKER, *checks, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == checks


def test_four_workers_equal_one_process() -> None:
    name = "adam_with_schedule_clipping_and_decay"
    job = run_job("collective", 4, WORKER, name, seconds=600)
    assert job.returncode == 0, job.stdout[-6000:]
    assert re.findall(r"passed (\w+)", job.stdout) == [name]
