"""Costs are found again from the times that they make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.profiler.fit import ComputationSlowdown, CpuCosts, LaneCosts, Timed, fit_cpu, fit_lanes

SIZES = (256, 1 << 14, 1 << 17, 1 << 20)
seconds = st.floats(1e-5, 1e-2)
per_byte = st.floats(1e-10, 1e-7)


def timed(costs: LaneCosts, noise: float = 0.0) -> list[Timed]:
    latency, fixed, push, pull = costs
    result = []
    for index, n in enumerate(SIZES):
        factor = 1 + noise * (-1) ** index
        one_by_one = 8 * (latency + fixed + n * (push + pull))
        together = latency + 8 * (fixed + n * push) + n * pull
        result.append(Timed(n, 8, one_by_one * factor, together / factor))
    return result


@given(seconds, seconds, per_byte, st.floats(0, 1))
def test_exact_times(latency: float, fixed: float, push: float, share: float) -> None:
    costs = LaneCosts(latency, fixed, push, push * share)
    assert fit_lanes(timed(costs), two_lanes=True) == pytest.approx(costs, rel=1e-3, abs=1e-12)


def test_one_lane() -> None:
    costs = LaneCosts(1e-3, 2e-4, 3e-8, 0.0)
    found = fit_lanes(timed(costs, noise=0.05), two_lanes=False)
    assert found.pull_seconds_per_byte == 0
    assert found[:3] == pytest.approx(costs[:3], rel=0.15)


def test_no_cost_is_negative() -> None:
    # More together than one by one: no latency can explain that.
    found = fit_lanes([Timed(n, 8, n * 1e-8, n * 2e-8) for n in SIZES], two_lanes=True)
    assert min(found) == 0
    assert all(value >= 0 for value in found)


@given(seconds, per_byte)
def test_cpu(per_exchange: float, byte: float) -> None:
    costs = CpuCosts(per_exchange, byte)
    beside = [
        ComputationSlowdown(n, m, m * (per_exchange + n * byte))
        for n, m in ((256, 32), (1 << 20, 4))
    ]
    assert fit_cpu(beside) == pytest.approx(costs, rel=1e-3)


def test_no_cpu() -> None:
    assert fit_cpu([ComputationSlowdown(256, 32, 0.0), ComputationSlowdown(1 << 20, 4, 0.0)]) == (
        0,
        0,
    )


def test_bytes_always_cost_something() -> None:
    # Somebody else used the machine while the small ones were measured.
    timed = [Timed(1 << 18, 8, 0.9, 0.8), Timed(1 << 20, 8, 0.5, 0.4)]
    assert fit_lanes(timed, two_lanes=True).seconds_per_byte == pytest.approx(0.4 / (8 << 20))
