"""Gradients in low rank, in the planner: which travel so, in which rank, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from ooodist.errors import UserError
from ooodist.planner.costs import LowRankCosts, Network, StepCosts
from ooodist.planner.data_parallel import plan as plans
from ooodist.planner.data_parallel.bound import lower_bound
from ooodist.planner.data_parallel.plan import InLowRank, Plan, PlannedExchange
from ooodist.planner.data_parallel.search import Limits, in_wire, make_plan
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.low_rank import (
    LEAST_RANK,
    RANKS,
    at_least,
    residual_bytes,
    thin_bytes,
    thin_seconds,
)
from ooodist.planner.narrowing import LEAST_GAIN, all_in
from tests.planner import test_narrowing
from tests.planner.chains import chain_costs, each_alone
from tests.planner.test_narrowing import seconds_of
from tests.thorough import few

LAYER = 4 << 20  # bytes of a gradient of 1024 x 1024
LIMITS = Limits(evaluations=300, carrying=True, max_steps_per_execution=2)
AUTO = in_wire(LIMITS, "planned", "auto")


def matrices(sizes: list[int]) -> StepCosts:
    """A chain of layers whose gradients have 1024 columns."""
    costs = chain_costs(sizes)
    weights = tuple(replace(w, columns=1024) for w in costs.weights)
    return replace(costs, weights=weights, low_rank=LowRankCosts(5.5e-9, 1e-7, 4.5e-9))


def network_of(costs: StepCosts, ratio: float, *, by_urgency: bool = False) -> Network:
    """Exchanges in full width take ``ratio`` times as long as the computation."""
    network = test_narrowing.network_of(costs, ratio, by_urgency=by_urgency)
    return replace(network, latency=1e-3, cpu_seconds_per_copied_byte=1e-9)


@pytest.mark.parametrize("by_urgency", [False, True])
def test_the_second_exchange_follows_the_first(by_urgency: bool) -> None:
    """By hand: one layer, so nothing hides anything."""
    costs = matrices([LAYER])
    network = network_of(costs, 1000.0, by_urgency=by_urgency)
    plan = Plan("thin", None, each_alone("w1"), by_urgency=by_urgency)
    plan = replace(plan, low_rank=(InLowRank(4, ("w1",)),))
    simulator = Simulator(costs, network)
    first, second = simulator.run(plan).exchanges
    (weight,) = costs.weights
    assert (first.num_bytes, second.num_bytes) == thin_bytes(weight, 4) == (16384, 16384)
    sent = 16384 * network.seconds_per_byte
    before, after = thin_seconds(weight, 4, costs.low_rank)
    assert first.end == pytest.approx(2 + network.latency + sent)  # F1 and W1 take a second each
    # While it travels, the stream has nothing else to do, and so time for the products.
    assert second.ready == first.end
    assert second.end == pytest.approx(first.end + network.latency + sent)
    assert simulator.step_seconds(plan) == pytest.approx(second.end)
    assert before > after > 0
    grown = simulator.peak_bytes(plan) - simulator.peak_bytes(replace(plan, low_rank=()))
    assert grown == residual_bytes(weight) == LAYER


def test_products_take_time_from_what_is_computed_meanwhile() -> None:
    costs = matrices([LAYER, LAYER])
    network = network_of(costs, 1e-6)
    plan = Plan("full", None, each_alone("w2", "w1"))
    thin = replace(plan, low_rank=(InLowRank(4, ("w2",)),))
    simulator = Simulator(costs, network)
    seconds = sum(thin_seconds(costs.weights[1], 4, costs.low_rank))
    slower = simulator.step_seconds(thin) - simulator.step_seconds(plan)
    assert slower == pytest.approx(seconds, rel=0.1)


@few(30)
@given(st.data())
def test_no_plan_is_below_the_bound_whatever_is_thin(data: DataObject) -> None:
    costs = matrices([LAYER * data.draw(st.integers(1, 4)) for _ in range(4)])
    network = network_of(costs, data.draw(st.floats(0.1, 20)), by_urgency=data.draw(st.booleans()))
    names = data.draw(st.permutations([weight.name for weight in costs.weights]))
    ranks = {name: data.draw(st.sampled_from([None, *RANKS])) for name in names}
    plan = Plan(
        "mixed",
        None,
        each_alone(*names),
        credit=data.draw(st.sampled_from([None, 1, 2])),
        by_urgency=network.by_urgency,
        low_rank=tuple(
            InLowRank(rank, tuple(name for name in names if ranks[name] == rank))
            for rank in sorted({rank for rank in ranks.values() if rank})
        ),
        steps_per_execution=data.draw(st.integers(1, 3)),
    )
    simulator = Simulator(costs, network)
    seconds = simulator.step_seconds(plan)
    bound = lower_bound(at_least(costs, 2), network, plan.steps_per_execution, carrying=True)
    assert bound <= seconds * (1 + 1e-9)
    assert simulator.run(plan).step_seconds == pytest.approx(seconds)  # played in full


@pytest.mark.parametrize("by_urgency", [False, True])
def test_all_travel_whole_where_exchanges_can_be_hidden(by_urgency: bool) -> None:
    costs = matrices([LAYER] * 6)
    found = make_plan(costs, network_of(costs, 0.4, by_urgency=by_urgency), limits=AUTO)
    assert not found.low_rank
    assert not found.narrow


@pytest.mark.parametrize("by_urgency", [False, True])
def test_ten_times_too_slow_a_network_costs_little(by_urgency: bool) -> None:
    costs = matrices([LAYER] * 6)
    network = network_of(costs, 10.0, by_urgency=by_urgency)
    found = make_plan(costs, network, limits=AUTO)
    assert found.low_rank
    assert seconds_of(found) < 1.15 * costs.compute_seconds
    fixed = make_plan(costs, network, limits=in_wire(LIMITS, "float32", 2))
    assert [group.rank for group in fixed.low_rank] == [2]
    assert sum(len(group.weights) for group in fixed.low_rank) == 6
    assert max(group.rank for group in found.low_rank) > LEAST_RANK or found.narrow


def test_where_a_rank_takes_too_long_only_the_last_exchanges_have_a_lower_one() -> None:
    costs = matrices([LAYER] * 12)
    found = make_plan(costs, network_of(costs, 60.0), limits=AUTO)
    lowest, other = found.low_rank
    assert (lowest.rank, other.rank) == (LEAST_RANK, 2 * LEAST_RANK)
    assert len(lowest.weights) < len(other.weights)


def test_no_rank_is_lower_than_the_least_unless_it_is_asked_for() -> None:
    costs = matrices([LAYER] * 4)
    network = network_of(costs, 1000.0)
    found = make_plan(costs, network, limits=AUTO)
    assert {group.rank for group in found.low_rank} == {LEAST_RANK}
    lower = make_plan(costs, network, limits=in_wire(LIMITS, "float32", LEAST_RANK // 2))
    assert [group.rank for group in lower.low_rank] == [LEAST_RANK // 2]
    assert seconds_of(lower) < seconds_of(found)


@few(5)
@given(st.integers(2, 6), st.floats(0.5, 30.0), st.randoms(use_true_random=False))
def test_each_travels_as_whole_as_there_is_time_for(layers: int, ratio: float, rng: object) -> None:
    sizes = [LAYER * rng.randint(1, 8) for _ in range(layers)]  # type: ignore[attr-defined]
    costs = matrices(sizes)
    network = network_of(costs, ratio)
    exact = make_plan(costs, network, limits=LIMITS)
    found = make_plan(costs, network, limits=AUTO)
    assert plans.from_yaml(plans.yaml_dataclass.dump(found), "text") == found
    if not found.low_rank and not found.narrow:
        assert seconds_of(found) == seconds_of(exact)
        return
    assert seconds_of(found) <= (1 - LEAST_GAIN) * seconds_of(exact)
    simulator = Simulator(costs, network)
    for group in found.low_rank:
        for exchange in found.exchanges:
            if exchange.weights[0] in group.weights and group.rank < RANKS[-1]:
                wider = dict.fromkeys(exchange.weights, group.rank * 2)
                others = dict(pair for g in found.low_rank for pair in rank_of(g))
                moved = replace(found, low_rank=grouped({**others, **wider}))
                assert simulator.step_seconds(moved) > seconds_of(found)


def rank_of(group: InLowRank) -> list[tuple[str, int]]:
    return [(name, group.rank) for name in group.weights]


def grouped(ranks: dict[str, int]) -> tuple[InLowRank, ...]:
    return tuple(
        InLowRank(rank, tuple(name for name, own in ranks.items() if own == rank))
        for rank in sorted({*ranks.values()})
    )


def test_what_cannot_travel_in_low_rank_stays_as_it_is() -> None:
    costs = matrices([LAYER] * 4)
    vector = replace(costs.weights[0], columns=0)
    costs = replace(costs, weights=(vector, *costs.weights[1:]))
    exchanges = (
        PlannedExchange(("w4",)),
        PlannedExchange(("w3",), 0, 2),
        PlannedExchange(("w3",), 1, 2),
        PlannedExchange(("w2", "w1")),
    )
    plan = Plan("some", None, exchanges)
    assert all_in(plan, costs, 4).low_rank == (InLowRank(4, ("w4",)),)
    assert all_in(plans.with_carried(plan, ("w4",)), costs, 4).low_rank == ()
    rest = all_in(plan, costs, 4, "float16")
    assert (rest.wire, rest.narrow) == ("float16", ("w3", "w2", "w1"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low_rank": (InLowRank(4, ("w2",)),)}, "name all weights of a bucket"),
        ({"low_rank": (InLowRank(4, ("w3",)),)}, "exchanged in parts; exchange it whole"),
        ({"low_rank": (InLowRank(4, ("w9",)),)}, "w9, which the plan does not exchange"),
        ({"low_rank": (InLowRank(4, ("w4",)), InLowRank(2, ("w4",)))}, "in one of them"),
        (
            {
                "low_rank": (InLowRank(4, ("w4",)),),
                "exchanges": (
                    PlannedExchange(("w4",), carried=True),
                    *each_alone("w3", "w2", "w1"),
                ),
            },
            "in one of them",
        ),
    ],
)
def test_a_plan_that_cannot_be(changes: dict[str, object], message: str) -> None:
    exchanges = (
        PlannedExchange(("w4",)),
        PlannedExchange(("w3",), 0, 2),
        PlannedExchange(("w3",), 1, 2),
        PlannedExchange(("w2", "w1")),
    )
    plan = replace(Plan("wrong", None, exchanges), **changes)  # type: ignore[arg-type]
    costs = matrices([LAYER] * 4)
    simulator = Simulator(costs, network_of(costs, 1.0))
    with pytest.raises(UserError, match=message):
        plans.check_exchanges(plan)
    with pytest.raises(UserError, match=message):
        simulator.step_seconds(plan)


def test_a_plan_for_another_model() -> None:
    plan = Plan("vector", None, each_alone("w1"), low_rank=(InLowRank(4, ("w1",)),))
    costs = chain_costs([LAYER])
    simulator = Simulator(costs, network_of(costs, 1.0))
    with pytest.raises(UserError, match="low_rank 4 has w1, whose gradient is no matrix"):
        simulator.step_seconds(plan)
