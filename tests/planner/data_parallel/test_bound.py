"""The lower bound: no plan is below it, and some reach it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.bound import lower_bound
from ooodist.planner.data_parallel.plan import Plan, with_carried
from ooodist.planner.data_parallel.simulate import Simulator
from tests.planner import instances
from tests.planner.chains import chain_costs, each_alone


@given(st.data(), st.sampled_from([instances.EIGHTHS, instances.ANY]))
def test_no_plan_is_below(data: DataObject, seconds: SearchStrategy[float]) -> None:
    costs = data.draw(instances.step_costs(seconds))
    network = data.draw(instances.networks(seconds))
    plan = data.draw(instances.plans(costs))
    seconds_of_plan = Simulator(costs, network).step_seconds(plan)
    for carrying in {True, bool(plan.carried)}:
        bound = lower_bound(costs, network, plan.steps_per_execution, carrying=carrying)
        assert seconds_of_plan >= bound * (1 - 1e-9) - 1e-9


@pytest.mark.parametrize("by_urgency", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_reached_where_one_layer_does_all(steps: int, by_urgency: bool) -> None:
    costs = replace(chain_costs([8], update=0.5), launch_seconds=2.0, middle_seconds=0.25)
    network = Network("any", 2, latency=0.5, fixed=1.0, seconds_per_byte=1.0)
    plan = Plan("any", None, each_alone("w1"), by_urgency=by_urgency, steps_per_execution=steps)
    found = Simulator(costs, network).step_seconds(plan)
    assert found == pytest.approx(1 + 0.25 + 1 + 0.5 + 1 + 8 + 0.5 + 2 / steps)
    assert lower_bound(costs, network, steps) == pytest.approx(found)


def test_exchange_counts_from_the_first_gradient_to_the_last_forward_unit() -> None:
    """Ten equal layers whose exchange takes as long as their units: W10, 180 s, F10."""
    costs = chain_costs([18] * 10, forward=6, output_gradient=6, weight_gradient=6)
    network = Network("any", 2, seconds_per_byte=1.0)
    one, many = lower_bound(costs, network, 1), lower_bound(costs, network, 1000)
    assert one == pytest.approx(60 + 6 + 180)
    assert many == pytest.approx(6 + 180 + 6, rel=1e-3)


def test_carrying_takes_the_end_of_a_call_away() -> None:
    """Of two layers, the exchange of the second hides behind the first, and the other way round."""
    costs = replace(chain_costs([2, 2], forward=2, weight_gradient=2), launch_seconds=1.0)
    network = Network("any", 2, seconds_per_byte=1.0)
    order = ("X2", "W1", "W2")
    plan = with_carried(Plan("any", order, each_alone("w1", "w2")), ("w2",))
    assert lower_bound(costs, network, 1, carrying=True) == 9 + 1
    assert Simulator(costs, network).step_seconds(plan) == 9 + 1
    assert lower_bound(costs, network, 1) == 9 + 1 + 2


def test_compute_waits_for_the_gradient_that_is_ready_last() -> None:
    costs = chain_costs([8, 2, 4], forward=10, output_gradient=10, weight_gradient=10, update=0.5)
    network = Network("any", 2, seconds_per_byte=1.0)
    # Layer 2 last: 2 s on its way, in which the other two are updated, and its own update.
    assert lower_bound(costs, network, 1) == pytest.approx(80 + 2 + 0.5)


def test_one_worker_waits_for_nothing() -> None:
    costs = replace(chain_costs([8, 8], update=0.5), launch_seconds=3.0)
    assert lower_bound(costs, Network("local", 1), 2) == costs.compute_seconds + 1.5
