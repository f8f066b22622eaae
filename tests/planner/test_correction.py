"""What steps teach about costs that were measured."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.correction import (
    CALL_ERRORS,
    COMPUTE_ERRORS,
    EXCHANGE_ERRORS,
    NETWORK_SECONDS,
    STEP_ERROR,
    Correction,
    Observed,
    correct,
    correction,
)
from ooodist.planner.costs import LowRankCosts, Network
from ooodist.planner.data_parallel.named import baseline_plan, default_plan, first_k_plan
from ooodist.planner.data_parallel.plan import InLowRank, Plan
from ooodist.planner.data_parallel.simulate import Simulator
from tests.planner.chains import chain_costs, each_alone
from tests.thorough import few

COSTS = replace(
    chain_costs(
        [1 << 20] * 6, forward=1e-3, output_gradient=1e-3, weight_gradient=1e-3, update=1e-4
    ),
    middle_seconds=5e-4,
    launch_seconds=2e-3,
    trace_seconds=1.0,
    low_rank=LowRankCosts(1e-9, 1e-8, 1e-9),
)
NETWORK = Network(
    "horovod",
    2,
    latency=1e-3,
    fixed=2e-3,
    seconds_per_byte=2e-9,
    cpu_seconds_per_byte=1e-10,
    cpu_seconds_per_exchange=1e-4,
    cpu_seconds_per_copied_byte=1e-10,
)
MATRICES = replace(COSTS, weights=tuple(replace(w, columns=512) for w in COSTS.weights))
THIN = Plan(
    "thin",
    None,
    each_alone("w2", "w1", "w6", "w5", "w4", "w3"),
    low_rank=(InLowRank(4, ("w6", "w1")),),
)
FACTORS = st.floats(0.4, 2.5)


def seconds(made: Correction, plan: Plan) -> float:
    return Simulator(made.costs(COSTS), made.network(NETWORK)).step_seconds(plan)


def observed(truth: Correction, *plans: Plan) -> list[Observed]:
    return [Observed(plan, seconds(truth, plan)) for plan in plans]


def surprise(made: Correction, seen: list[Observed]) -> float:
    """What the most probable correction has the least of."""
    errors = (math.log(seconds(made, each.plan) / each.seconds) / STEP_ERROR for each in seen)
    factors = (
        (made.compute, COMPUTE_ERRORS),
        (made.exchange, EXCHANGE_ERRORS),
        (made.call, CALL_ERRORS),
    )
    deviations = (math.log(factor) / errors[factor > 1] for factor, errors in factors)
    return math.hypot(*errors, *deviations)


DEFAULT, STOCK, LATE = (
    default_plan(COSTS, NETWORK),
    baseline_plan(COSTS, NETWORK),
    first_k_plan(COSTS, NETWORK, 4, steps_per_execution=2),
)


def test_deviations_are_those_of_the_side() -> None:
    assert correction(0, 0, 0) == Correction()
    for side, sign in ((0, -1), (1, 1)):
        made = correction(sign, 2 * sign, 3 * sign)
        assert math.log(made.compute) == pytest.approx(sign * COMPUTE_ERRORS[side])
        assert math.log(made.exchange) == pytest.approx(2 * sign * EXCHANGE_ERRORS[side])
        assert math.log(made.call) == pytest.approx(3 * sign * CALL_ERRORS[side])


def test_who_has_seen_nothing_corrects_nothing() -> None:
    assert correct(COSTS, NETWORK, []) == Correction()
    assert Correction().costs(COSTS) == COSTS
    assert Correction().network(NETWORK) == NETWORK


@given(FACTORS)
def test_all_seconds_of_a_step_are_corrected(factor: float) -> None:
    """Else a machine that is so many times as fast would not be what it says."""
    both = Correction(factor, factor)
    for plan in (DEFAULT, STOCK, LATE):
        assert seconds(both, plan) == pytest.approx(factor * seconds(Correction(), plan))
    thin = [
        Simulator(made.costs(MATRICES), made.network(NETWORK)).step_seconds(THIN)
        for made in (both, Correction())
    ]
    assert thin[0] == pytest.approx(factor * thin[1])
    assert both.costs(COSTS).trace_seconds == COSTS.trace_seconds


def test_of_a_network_all_that_is_seconds_is_corrected() -> None:
    numbers = {field.name for field in fields(Network) if "Seconds" in str(field.type)}
    assert numbers == set(NETWORK_SECONDS)


@pytest.mark.parametrize("plan", [DEFAULT, STOCK, LATE], ids=lambda plan: plan.name)
def test_steps_as_predicted_correct_nothing(plan: Plan) -> None:
    found = correct(COSTS, NETWORK, observed(Correction(), plan))
    assert (found.compute, found.exchange, found.call) == pytest.approx((1, 1, 1), abs=1e-3)


@few(12)
@given(st.floats(0.7, 1.4), FACTORS)
def test_what_was_seen_is_then_predicted(compute: float, exchange: float) -> None:
    seen = observed(Correction(compute, exchange), DEFAULT, STOCK, LATE)
    found = correct(COSTS, NETWORK, seen)
    for each in seen:
        assert seconds(found, each.plan) == pytest.approx(each.seconds, rel=0.1)


@few(12)
@given(FACTORS, FACTORS)
def test_no_other_correction_near_it_is_more_probable(compute: float, exchange: float) -> None:
    seen = observed(Correction(compute, exchange), DEFAULT, LATE)
    found = correct(COSTS, NETWORK, seen)
    least = surprise(found, seen)
    factors = (0.95, 1, 1.05)
    for first, second, third in itertools.product(factors, factors, factors):
        other = Correction(found.compute * first, found.exchange * second, found.call * third)
        assert surprise(other, seen) >= least * (1 - 1e-3) - 1e-3


def test_exchanges_that_cost_less_than_was_measured_are_found_out() -> None:
    """As at home, where they wait for busy cores only as long as something else computes."""
    truth = Correction(exchange=0.4)
    found = correct(COSTS, NETWORK, observed(truth, DEFAULT))
    assert found.exchange < 0.6
    assert seconds(found, LATE) == pytest.approx(seconds(truth, LATE), rel=0.1)
    assert abs(seconds(Correction(), LATE) / seconds(truth, LATE) - 1) > 0.2


def test_calls_that_cost_less_than_was_measured_are_found_out() -> None:
    """As at home, where another worker computes between the calls of this one."""
    truth = Correction(call=0.3)
    costs = replace(COSTS, launch_seconds=0.03)

    def took(made: Correction, plan: Plan) -> float:
        return Simulator(made.costs(costs), made.network(NETWORK)).step_seconds(plan)

    found = correct(costs, NETWORK, [Observed(plan, took(truth, plan)) for plan in (DEFAULT, LATE)])
    assert found.call < 0.6
    longer = replace(LATE, steps_per_execution=8)
    assert took(found, longer) == pytest.approx(took(truth, longer), rel=0.05)
    # As measured, it would be expected to gain much more.
    assert took(Correction(), longer) / took(Correction(), DEFAULT) < 0.8 * (
        took(found, longer) / took(found, DEFAULT)
    )


def test_a_second_plan_tells_computing_and_exchanging_apart() -> None:
    truth = Correction(compute=1.3, exchange=0.7)
    errors = []
    for plans in ((DEFAULT,), (DEFAULT, LATE, STOCK)):
        found = correct(COSTS, NETWORK, observed(truth, *plans))
        errors.append(abs(math.log(found.compute / truth.compute)))
    assert errors[1] < errors[0]
