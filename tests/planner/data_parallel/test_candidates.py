"""Plans from a few settings: which exchanges they carry, in which order, and that it pays off."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.candidates import Family, Settings
from ooodist.planner.data_parallel.exchanges import layers_by_need, need_order
from ooodist.planner.data_parallel.plan import carried_exchanges, check_exchanges
from ooodist.planner.data_parallel.simulate import Simulator
from tests.planner import instances
from tests.planner.chains import chain_costs

TEN = chain_costs([18] * 10, forward=6, output_gradient=6, weight_gradient=6)
NETWORK = Network("any", 2, seconds_per_byte=1.0)


def family_of(costs: StepCosts, network: Network = NETWORK) -> Family:
    return Family(Simulator(costs, network), (None,), (1 << 20,), carrying=True)


@given(st.data(), st.booleans())
def test_any_settings_make_a_legal_plan(data: DataObject, by_urgency: bool) -> None:
    costs = data.draw(instances.step_costs())
    network = replace(data.draw(instances.networks(workers=2)), by_urgency=by_urgency)
    layers = layers_by_need(costs)
    assert tuple(name for layer in layers for name in layer) == need_order(costs)
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, len(layers))] * 2)))
    bucket_bytes = data.draw(st.sampled_from([0, 200, 1 << 20]))
    some = Settings(0, data.draw(st.booleans()), bucket_bytes, 1 << 20, None, (first, end))
    family = family_of(costs, network)
    plan = family.plan(some, 1)
    check_exchanges(plan)
    within = {name for layer in layers[first:end] for name in layer}
    assert within >= {*plan.carried}
    if not bucket_bytes:
        assert within == {*plan.carried}
    # Those that are carried are in the order of need; all others stay where they are.
    carried = [plan.exchanges[number] for number in carried_exchanges(plan)]
    place = {name: number for number, name in enumerate(need_order(costs))}
    firsts = [min(place[name] for name in exchange.weights) for exchange in carried]
    assert firsts == sorted(firsts)
    without = family.plan(replace(some, carried=(0, 0)), 1)
    assert without.carried == ()
    for exchange, other in zip(plan.exchanges, without.exchanges, strict=True):
        assert exchange == other or (exchange.carried and replace(other, carried=True) in carried)
    halves = family.plan(replace(some, halves=True), 1)
    check_exchanges(halves)
    assert {*halves.carried} == {*plan.carried}


def test_a_range_of_layers_is_carried() -> None:
    plan = family_of(TEN).plan(Settings(6, False, 0, None, None, (6, 10)), 1)
    assert plan.carried == ("w7", "w8", "w9", "w10")
    order = [exchange.weights[0] for exchange in plan.exchanges]
    assert order == ["w7", "w8", "w9", "w10", "w1", "w2", "w3", "w4", "w5", "w6"]


def test_second_halves_are_carried() -> None:
    settings = Settings(0, False, 0, None, None, (1, 3), halves=True)
    plan = family_of(chain_costs([128] * 4)).plan(settings, 1)
    names = [exchange.name for exchange in plan.exchanges]
    assert names == ["w4", "w3[0/2]", "w2[1/2]", "w2[0/2]", "w3[1/2]", "w1"]
    assert [names[number] for number in carried_exchanges(plan)] == ["w2[1/2]", "w3[1/2]"]


@pytest.mark.parametrize("size", [4, 8, 18, 30])
def test_limits_are_found_by_trying(size: int) -> None:
    """Nearly as good as the best of all ranges with all k."""
    costs = replace(TEN, weights=tuple(replace(w, num_bytes=size) for w in TEN.weights))
    simulator = Simulator(costs, NETWORK)
    family = family_of(costs)
    nothing = Settings(0, False, 0, None, None)
    best = min(
        simulator.step_seconds(family.plan(replace(nothing, k=k, carried=pair), 1))
        for k in range(11)
        for pair in itertools.combinations(range(11), 2)
    )
    assert best < simulator.step_seconds(family.plan(nothing, 1))
    found = family.plan(family.improve(nothing, 1, simulator.step_seconds), 1)
    assert found.carried
    assert simulator.step_seconds(found) <= 1.01 * best


def test_without_carrying_nothing_is_carried() -> None:
    family = Family(Simulator(TEN, NETWORK), (None,), (1 << 20,))
    for start in family.starts():
        found = family.improve(start, 1, Simulator(TEN, NETWORK).step_seconds)
        assert family.plan(found, 1).carried == ()
