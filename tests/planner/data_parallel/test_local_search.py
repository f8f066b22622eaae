"""Small changes of plans: they stay legal, and get better with what may be carried."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.local_search import LocalSearch
from ooodist.planner.data_parallel.orders import is_legal
from ooodist.planner.data_parallel.plan import (
    Plan,
    PlannedExchange,
    check_exchanges,
    with_carried,
)
from ooodist.planner.data_parallel.simulate import Simulator
from tests.planner import instances
from tests.planner.chains import chain_costs, each_alone


@given(st.data(), st.booleans(), st.integers(0, 1000))
def test_every_change_is_legal(data: DataObject, carrying: bool, seed: int) -> None:
    costs = data.draw(instances.step_costs())
    plan = data.draw(instances.plans(costs).filter(lambda each: each.exchanges))
    if not carrying:
        plan = with_carried(plan, ())
    simulator = Simulator(costs, data.draw(instances.networks(workers=2)))
    tried: list[Plan] = []

    def score(changed: Plan) -> float:
        tried.append(changed)
        check_exchanges(changed)
        assert changed.order is None or is_legal(costs, changed.order)
        return simulator.step_seconds(changed)

    local = LocalSearch(costs, (1, None), score, random.Random(seed), carrying=carrying)
    found = local.improve(plan, 20, follow=data.draw(st.booleans()))
    assert score(found) <= score(plan)
    simpler = local.simplify(found, score(found) * 1.1)
    assert score(simpler) <= score(found) * 1.1
    assert {*simpler.carried} <= {*found.carried}
    assert carrying or not any(each.carried for each in tried)


COSTS = chain_costs([18] * 6, forward=6, output_gradient=6, weight_gradient=6)
NAMES = [f"w{layer}" for layer in range(1, 7)]
SIMULATOR = Simulator(COSTS, Network("any", 2, seconds_per_byte=1.0))


def test_it_finds_what_to_carry() -> None:
    plan = Plan("any", None, each_alone(*NAMES))
    scored = SIMULATOR.step_seconds
    found = [
        LocalSearch(COSTS, (None,), scored, random.Random(1), carrying=carrying).improve(
            plan, 1500, follow=True
        )
        for carrying in (False, True)
    ]
    without, carrying = map(scored, found)
    assert without == pytest.approx(6 * 6 + 5 * 6 + 6 + 6 * 18 - 30, abs=12)
    assert carrying < 0.85 * without
    assert found[1].carried


def test_what_gains_nothing_is_carried_no_longer() -> None:
    bucket = PlannedExchange(("w1", "w2"))
    plan = Plan("any", None, (bucket, *each_alone(*NAMES[2:])))
    plan = with_carried(plan, ("w1", "w2", "w6"))
    local = LocalSearch(COSTS, (None,), lambda plan: 1.0, random.Random(1), carrying=True)
    assert local.simplify(plan, 1.0).carried == ()

    def bucket_must_stay(changed: Plan) -> float:
        check_exchanges(changed)
        return 1.0 if "w1" in changed.carried else 2.0

    local = LocalSearch(COSTS, (None,), bucket_must_stay, random.Random(1), carrying=True)
    assert local.simplify(plan, 1.0).carried == ("w1", "w2")
