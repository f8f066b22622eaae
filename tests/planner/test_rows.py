"""What rows cost, and plans for gradients that travel as such."""

from __future__ import annotations

import random
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.candidates import Family, Settings
from ooodist.planner.data_parallel.exchanges import arrange, fused, max_parts
from ooodist.planner.data_parallel.local_search import LocalSearch
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.rows import (
    are_fewer,
    reduced_bytes,
    travels_as_rows,
    with_rows,
)
from tests.planner.chains import chain_costs, each_alone


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(2, 1000))
def test_what_each_rank_sends(row_bytes: int, num_bytes: int, workers: int) -> None:
    gathered = (workers - 1) * row_bytes
    assert reduced_bytes(row_bytes, workers) == ceil(gathered / (2 * (workers - 1) / workers))
    if are_fewer(row_bytes, num_bytes, workers):
        assert workers * gathered < 2 * (workers - 1) * num_bytes


def test_one_rank_or_no_rows_send_nothing() -> None:
    assert not are_fewer(10, 1000, 1)
    assert not are_fewer(0, 1000, 2)
    assert are_fewer(999, 1000, 2)
    assert not are_fewer(1000, 1000, 2)


def with_table(table_bytes: int = 4 << 20, row_bytes: int = 1 << 18) -> StepCosts:
    """Three layers, of which the first is an embedding."""
    costs = chain_costs([table_bytes, 1 << 20, 1 << 20])
    table, *others = costs.weights
    return replace(costs, weights=(replace(table, row_bytes=row_bytes), *others))


def network(engine: str = "horovod", workers: int = 2) -> Network:
    by_urgency = engine == "byteps"
    return Network(engine, workers, 1e-4, 1e-4, seconds_per_byte=1e-6, by_urgency=by_urgency)


@pytest.mark.parametrize(
    ("engine", "workers", "sent"),
    [
        ("horovod", 2, 1 << 18),
        ("collective", 16, 1 << 21),
        ("collective", 32, 4 << 20),
        ("byteps", 2, 4 << 20),
        ("local", 1, 4 << 20),
    ],
)
def test_rows_are_chosen_by_bytes(engine: str, workers: int, sent: int) -> None:
    costs = with_rows(with_table(), network(engine, workers))
    assert [weight.num_bytes for weight in costs.weights] == [sent, 1 << 20, 1 << 20]
    assert [travels_as_rows(weight) for weight in costs.weights] == [sent < 4 << 20, False, False]


def test_rows_share_no_bucket_and_are_not_split() -> None:
    costs = with_rows(with_table(), network())
    names = ["w3", "w2", "w1"]
    assert [e.weights for e in arrange(costs, names, bucket_bytes=1 << 30)] == [
        ("w3", "w2"),
        ("w1",),
    ]
    assert [e.parts for e in arrange(costs, ["w1"], chunk_bytes=1 << 10)] == [1]
    assert max_parts(costs.weights[0]) == 1
    assert ("w1",) in [e.weights for e in fused(costs, network())]


def test_the_simulated_step_waits_for_rows_only() -> None:
    plan = Plan("alone", None, each_alone("w3", "w2", "w1"), credit=1)
    tables = Simulator(with_table(), network()).step_seconds(plan)
    rows = Simulator(with_rows(with_table(), network()), network()).step_seconds(plan)
    assert tables - rows == pytest.approx(((4 << 20) - (1 << 18)) * 1e-6)


def test_rows_stay_alone_whole_and_in_their_call() -> None:
    costs = with_rows(with_table(row_bytes=1 << 21), network())
    simulator = Simulator(costs, network())
    family = Family(simulator, (1, None), (), carrying=True)
    plan = family.plan(Settings(0, False, 1 << 30, 1 << 20, 1, carried=(0, 3)), 1)
    tried = [plan]

    def score(changed: Plan) -> float:
        tried.append(changed)
        return simulator.step_seconds(changed)

    LocalSearch(costs, (1, None), score, random.Random(1), carrying=True).improve(
        plan, 300, follow=False
    )
    assert {weight for each in tried for weight in each.carried} == {"w2", "w3"}
    assert max(e.parts for each in tried for e in each.exchanges) > 1
    assert max(len(e.weights) for each in tried for e in each.exchanges) > 1
    for each in tried:
        (own,) = (e for e in each.exchanges if "w1" in e.weights)
        assert (own.weights, own.parts) == (("w1",), 1)
