"""All ranks measure together and get the same costs, with each engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooodist.engines.local import LocalEngine
from ooodist.profile import network
from ooodist.profile.network import measure_network, still_holds
from ooodist.schedule.costs import Network
from tests.jobs import ENGINES, needs_built, run_job

WORKER = Path(__file__).parent / "network_worker.py"


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers(engine: str, tmp_path: Path) -> None:
    needs_built(engine)
    done = run_job(engine, 2, WORKER, str(tmp_path))
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        assert f"rank {rank} measured" in done.stdout


@pytest.mark.parametrize(
    ("name", "max_credit", "credit"),
    [("horovod", None, 2), ("collective", None, 2), ("collective", 1, 1), ("byteps", None, None)],
)
def test_as_many_are_in_flight_as_plans_have(
    name: str, max_credit: int | None, credit: int | None
) -> None:
    engine = LocalEngine()
    engine.name, engine.max_credit = name, max_credit
    assert network._credit_of_plans(engine) == credit


def test_one_worker_has_no_costs() -> None:
    assert measure_network(LocalEngine()) == Network("local", 1)
    assert still_holds(LocalEngine(), Network("local", 1))
