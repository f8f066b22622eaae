"""Playing one step of many that are alike: the same end as all of them played."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.indexed import IndexedCosts
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.simulated_execution import SimulatedExecution
from tests.planner import instances
from tests.planner.chains import chain_costs, each_alone


@given(st.data(), st.sampled_from([instances.EIGHTHS, instances.ANY]))
def test_repeats_are_what_playing_yields(data: DataObject, seconds: SearchStrategy[float]) -> None:
    costs = data.draw(instances.step_costs(seconds))
    network = data.draw(instances.networks(seconds))
    plan = data.draw(instances.plans(costs))
    indexed_costs = IndexedCosts(costs, network)
    indexed = indexed_costs.index(plan)
    fewest = 2 if indexed.carried else 1
    numbers = data.draw(st.lists(st.integers(fewest, 5), min_size=1, max_size=3))
    repeated = SimulatedExecution(indexed_costs, indexed, plan, network).repeat(numbers)
    if repeated is None:
        assert max(numbers) > 1 or not indexed_costs.all_awaited
        return
    for number, found in zip(numbers, repeated, strict=True):
        settings = replace(plan, steps_per_execution=number)
        played = SimulatedExecution(indexed_costs, indexed, settings, network).play()
        assert found == pytest.approx(played, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("by_urgency", [False, True])
def test_a_long_launch_is_as_much_work_as_a_short_one(by_urgency: bool) -> None:
    costs = chain_costs([64] * 6, update=0.5)
    network = Network("any", 2, 0.5, 0.25, 1 / 64, cpu_seconds_per_exchange=0.1)
    names = [weight.name for weight in costs.weights]
    plan = Plan(
        "any", None, each_alone(*reversed(names)), by_urgency=by_urgency, steps_per_execution=1000
    )
    indexed_costs = IndexedCosts(costs, network)
    indexed = indexed_costs.index(plan)
    short, long = (SimulatedExecution(indexed_costs, indexed, plan, network) for _ in range(2))
    assert short.repeat([1000]) == pytest.approx([long.play()], rel=1e-12)
    assert (len(short.lanes.arrivals), len(long.lanes.arrivals)) == (6, 6000)
