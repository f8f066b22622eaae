"""All ranks measure together and get the same costs, with each engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.engines.local import LocalEngine
from ooodist.planner.costs import Network
from ooodist.profiler import network
from ooodist.profiler.fit import ComputationSlowdown, Timed, fit_cpu
from ooodist.profiler.network import measure_network, still_holds
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


class MadeUpTimer:
    """A step takes ``step`` seconds, and ``per_byte`` more for each byte exchanged beside it."""

    def __init__(self, step: float, per_byte: float) -> None:
        self.step, self.per_byte = step, per_byte
        self.exchanged: set[int] = set()
        self.seconds = 0.0

    def processing(self, num_bytes: int, count: int) -> float:
        return count * num_bytes * self.per_byte

    def beside_calls(self, call: object, calls: int, num_bytes: int, count: int) -> float:
        self.calls = calls
        self.seconds += calls * self.step
        self.exchanged.add(count)
        return calls * self.step + count * num_bytes * self.per_byte


@given(
    step=st.floats(1e-3, 10),
    each=st.floats(1e-4, 1),
    per_byte=st.floats(1e-10, 1e-7),
    num_bytes=st.sampled_from([1 << 16, 1 << 20]),
)
def test_what_a_step_takes_longer_beside_exchanges(
    step: float, each: float, per_byte: float, num_bytes: int
) -> None:
    timer = MadeUpTimer(step, per_byte)
    timed = Timed(num_bytes, 4, 5 * each, 4 * each)
    found = network._beside_steps(LocalEngine(), timer, timed, lambda: None)
    assert timer.exchanged == {0, found.num_exchanges}
    assert found.longer == pytest.approx(found.num_exchanges * num_bytes * per_byte, rel=1e-3)
    # All of them fit beside the steps, of which there are no more than it takes.
    assert found.num_exchanges == 2 or (
        (found.num_exchanges - 0.5) * each <= network.HIDDEN * timer.calls * step
    )
    assert timer.calls == 1 or (timer.calls - 0.5) * step <= network.BESIDE_SECONDS / network.HIDDEN
    # Long steps are timed less often.
    assert timer.seconds <= max(1.5 * network.MOST_STEP_SECONDS, 3 * step) + step
    costs = fit_cpu([ComputationSlowdown(256, 32, 0.0), found])
    assert costs.per_byte == pytest.approx(per_byte, rel=1e-2)


@given(drift=st.floats(-0.05, 0.05), late=st.integers(0, 4), late_seconds=st.floats(0, 10))
def test_a_machine_that_changes_its_speed_does_not_count(
    drift: float, late: int, late_seconds: float
) -> None:
    """Each computation takes by a share more than the last, and one is disturbed."""
    calls = 0

    def seconds(count: int) -> float:
        nonlocal calls
        calls += 1
        disturbed = late_seconds if calls == 2 * late + 1 else 0.0
        return 4.0 * (1 + drift * calls / 10) + 0.01 * count + disturbed

    found = network._longer(LocalEngine(), 1 << 20, 20, seconds, repeats=5)
    # From one computation to the next it changes by 4 drift / 10.
    assert found.longer == pytest.approx(0.2, abs=0.4 * abs(drift) + 1e-9)


def test_one_worker_has_no_costs() -> None:
    assert measure_network(LocalEngine(), lambda: None) == Network("local", 1)
    assert still_holds(LocalEngine(), Network("local", 1))


def test_exchanges_cost_a_computation_no_less_than_their_processor_time() -> None:
    timer, engine = MadeUpTimer(step=1.0, per_byte=1e-6), LocalEngine()
    for longer, cores, expected in ((0.0, 1, 0.04), (0.0, 4, 0.01), (0.05, 1, 0.05)):
        beside = ComputationSlowdown(1000, 40, longer)
        found = network._with_processor_time(engine, timer, beside, cores)
        assert found == ComputationSlowdown(1000, 40, pytest.approx(expected))


def test_one_rank_has_its_cores_for_itself() -> None:
    assert network._cores(LocalEngine()) == (len(os.sched_getaffinity(0)), 1)
