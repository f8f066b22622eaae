"""Buckets, chunks, and the order of the backward units that suits a sequence of exchanges."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from ooodist.planner.costs import Network, StepCosts, UnitCost, WeightCost
from ooodist.planner.data_parallel.exchanges import (
    OrderFor,
    arrange,
    most_urgent_first,
    need_order,
    ready_order,
)
from ooodist.planner.data_parallel.orders import is_legal
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange
from ooodist.planner.data_parallel.simulate import Simulator
from tests.planner import instances
from tests.planner.chains import chain_costs, each_alone


def weights(*sizes: int, dtype: str = "float32") -> StepCosts:
    return StepCosts((), (), tuple(WeightCost(f"w{i}", n, dtype) for i, n in enumerate(sizes)))


def names(exchanges: Sequence[PlannedExchange]) -> list[str]:
    return [exchange.name for exchange in exchanges]


def test_small_neighbors_share_a_bucket_and_large_ones_are_split() -> None:
    costs = weights(40, 40, 40, 1000, 8, 100)
    order = ["w0", "w1", "w2", "w3", "w4", "w5"]
    assert names(arrange(costs, order)) == order
    found = arrange(costs, order, bucket_bytes=80, chunk_bytes=500)
    assert names(found) == ["w0+1", "w2", "w3[0/2]", "w3[1/2]", "w4", "w5"]


def test_a_bucket_has_one_dtype() -> None:
    costs = StepCosts((), (), (WeightCost("a", 4), WeightCost("b", 4, "float16")))
    assert names(arrange(costs, ["a", "b"], bucket_bytes=100)) == ["a", "b"]


def test_a_gradient_is_split_no_further_than_it_can_be() -> None:
    assert len(arrange(weights(200), ["w0"], chunk_bytes=10)) == 4  # of 64 bytes and a rest
    assert len(arrange(weights(200, dtype="int32"), ["w0"], chunk_bytes=10)) == 1


@given(st.data(), st.integers(0, 300), st.none() | st.integers(1, 300))
def test_every_gradient_travels_once(
    data: DataObject, bucket_bytes: int, chunk_bytes: int | None
) -> None:
    costs = data.draw(instances.step_costs())
    order = data.draw(instances.orders(costs))
    ready = ready_order(costs, order)
    assert sorted(ready) == sorted(weight.name for weight in costs.weights)
    exchanges = arrange(costs, ready, bucket_bytes=bucket_bytes, chunk_bytes=chunk_bytes)
    urgent = most_urgent_first(costs, exchanges)
    assert set(urgent) == set(exchanges)
    for planned in (exchanges, urgent):  # the simulator refuses what is not legal
        Simulator(costs, Network("any", 2)).step_seconds(Plan("any", order, planned))


def test_orders_of_weights() -> None:
    costs = chain_costs([4, 4, 4])
    assert need_order(costs) == ("w1", "w2", "w3")
    assert ready_order(costs, None) == ("w3", "w2", "w1")
    assert ready_order(costs, ("X3", "X2", "W1", "W3", "W2")) == ("w1", "w3", "w2")
    assert names(most_urgent_first(costs, each_alone("w3", "w2", "w1"))) == ["w1", "w2", "w3"]


def test_the_order_for_a_sequence() -> None:
    costs = chain_costs([4, 4, 4])
    assert OrderFor(costs).sequence(each_alone("w2", "w3", "w1")) == ("X3", "W2", "W3", "X2", "W1")


@given(st.data())
def test_no_other_order_lets_a_sequence_start_earlier(data: DataObject) -> None:
    costs = data.draw(instances.step_costs())
    exchanges = tuple(data.draw(st.permutations(data.draw(instances.exchanges(costs)))))
    best, other = OrderFor(costs).sequence(exchanges), data.draw(instances.orders(costs))
    assert is_legal(costs, best)
    for found, least in zip(
        entries(costs, other, exchanges), entries(costs, best, exchanges), strict=True
    ):
        assert found >= least - 1e-9


def entries(
    costs: StepCosts, order: Sequence[str], exchanges: Sequence[PlannedExchange]
) -> list[float]:
    """When each exchange of a sequence can enter, in seconds of the backward pass."""
    units: dict[str, UnitCost] = {unit.name: unit for unit in costs.backward}
    ready = {weight.name: 0.0 for weight in costs.weights}
    now = 0.0
    for name in order:
        now += units[name].seconds
        ready.update(dict.fromkeys(units[name].weights, now))
    found: list[float] = []
    for exchange in exchanges:
        found.append(max([*found[-1:], *(ready[weight] for weight in exchange.weights)]))
    return found
