"""Horovod's cycles on demand (patches/horovod-*.patch)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.jobs import needs_built, run_job

pytestmark = pytest.mark.timing("exchanges of 1 ms take 25 where other programs have the cores")
WORKER = Path(__file__).with_name("horovod_cycle_worker.py")
EXCHANGES = 30
CYCLE = 0.1  # seconds


def run(variables: Mapping[str, str]) -> dict[str, float]:
    """What rank 0 prints: the median seconds of exchanges, each of which starts when the last is
    complete."""
    needs_built("horovod")
    cycle = {"HOROVOD_CYCLE_TIME": f"{CYCLE * 1e3:g}"}
    job = run_job("horovod", 2, WORKER, str(EXCHANGES), variables=cycle | dict(variables))
    assert job.returncode == 0, job.stdout
    return {name: float(value) for name, value in re.findall(r"(\w+) is (\S+)", job.stdout)}


def test_without_the_variable_each_exchange_waits_for_a_cycle() -> None:
    assert run({})["seconds"] > CYCLE / 2


def test_on_demand_none_waits() -> None:
    assert run({"HOROVOD_CYCLE_ON_DEMAND": "1"})["seconds"] < CYCLE / 4


def test_a_worker_that_comes_later_is_waited_for() -> None:
    """It ends the wait of the others at once, and not with the next of their cycles."""
    found = run({"HOROVOD_CYCLE_ON_DEMAND": "1", "LATE_SECONDS": "0.02"})
    assert 0.015 < found["seconds"] < 0.02 + CYCLE / 2
