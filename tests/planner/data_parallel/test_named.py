"""Plans with a name."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from ooodist.errors import UserError
from ooodist.planner.cluster import describe_network
from ooodist.planner.costs import Network, SavedTensor, StepCosts
from ooodist.planner.data_parallel.exchanges import arrange, ready_order
from ooodist.planner.data_parallel.named import (
    PARTITION_BYTES,
    NamedPlans,
    baseline_plan,
    default_plan,
    first_k_plan,
)
from ooodist.planner.data_parallel.orders import movable_layers
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.simulate import Simulator
from tests.planner import instances
from tests.planner.chains import chain_costs

HOROVOD = Network("horovod", 2, seconds_per_byte=1.0)
BYTEPS = replace(HOROVOD, engine="byteps", by_urgency=True)


def named(
    costs: StepCosts, network: Network, steps: int = 1, partition_bytes: int = PARTITION_BYTES
) -> NamedPlans:
    return NamedPlans(Simulator(costs, network), steps, partition_bytes)


def names(plan: Plan) -> list[str]:
    return [exchange.name for exchange in plan.exchanges]


def test_baseline_exchanges_what_is_ready() -> None:
    plan = baseline_plan(chain_costs([4, 4, 4]), replace(HOROVOD, seconds_per_byte=0.01))
    assert names(plan) == ["w3", "w2", "w1"]
    assert (plan.order, plan.credit, plan.by_urgency, plan.partition_bytes) == (
        (None, None, False, None)
    )
    assert (plan.engine, plan.workers, plan.steps_per_execution) == ("horovod", 2, 1)


def test_baseline_horovod_joins_what_is_ready_when_an_exchange_ends() -> None:
    slow = replace(HOROVOD, seconds_per_byte=0.0, latency=100.0)
    assert names(baseline_plan(chain_costs([4] * 5), slow)) == ["w5", "w4+3"]
    large = chain_costs([100 << 20, 28 << 20, 1 << 20, 64 << 20, 4])
    assert names(baseline_plan(large, slow)) == ["w5", "w4+2", "w1"]
    assert names(baseline_plan(chain_costs([4] * 3), replace(slow, engine="collective"))) == [
        "w3",
        "w2",
        "w1",
    ]


def test_baseline_in_a_ring_of_thousands_is_near_a_single_exchange() -> None:
    """The trips are paid for once by what travels together, and baseline joins all that waits."""
    costs = chain_costs([4] * 200)
    network = describe_network("horovod", 4096, 1e10, 30e-6)
    simulator = Simulator(costs, network)
    baseline = replace(baseline_plan(costs, network), credit=1)
    one = replace(
        baseline, exchanges=arrange(costs, ready_order(costs, None), bucket_bytes=1 << 30)
    )
    assert simulator.step_seconds(baseline) < 1.3 * simulator.step_seconds(one)


def test_tuned_has_the_settings_that_are_best_for_the_cluster() -> None:
    costs = chain_costs([1 << 20] * 8)
    far = Network("collective", 2, fixed=100.0)  # each exchange takes long, whatever its size
    assert names(named(costs, far).tuned()) == ["w8+7"]
    near = Network("horovod", 2, seconds_per_byte=1e-9)  # an exchange has ended before the next
    assert named(costs, near).tuned() == replace(baseline_plan(costs, near), name="tuned")
    slow = Network("byteps", 2, latency=10.0, seconds_per_byte=1e-6, by_urgency=True)
    plan = named(costs, slow).tuned(credits=(1, None), partitions=(1 << 17, 1 << 20))
    assert (plan.credit, plan.order) == (None, None)  # one piece at a time waits for each trip


def test_first_k_and_priority_have_buckets_where_they_are_better() -> None:
    costs = chain_costs([1 << 20] * 8)
    far = Network("collective", 2, fixed=100.0)
    plans = named(costs, far)
    for plan in (plans.best_first_k(), plans.best_priority()):
        assert names(plan) == ["w8+7"]


def test_baseline_byteps_counts_variables_from_the_first() -> None:
    plan = baseline_plan(chain_costs([4, 4, 4]), BYTEPS, steps_per_execution=3)
    assert names(plan) == ["w1", "w2", "w3"]
    assert (plan.order, plan.credit, plan.by_urgency, plan.partition_bytes) == (
        (None, None, True, 4_096_000)
    )
    assert plan.steps_per_execution == 3


@pytest.mark.parametrize("network", [HOROVOD, BYTEPS], ids=["horovod", "byteps"])
def test_the_default_is_baseline_with_small_gradients_in_buckets(network: Network) -> None:
    costs = chain_costs([4, 1 << 20, 100, 200, 2 << 20])
    plan = default_plan(costs, network, steps_per_execution=2)
    assert names(plan) == ["w5", "w4+1", "w2", "w1"]
    assert [exchange.weights for exchange in plan.exchanges][1] == ("w4", "w3")
    assert (plan.name, plan.order, plan.credit) == ("default", None, None)
    assert (plan.engine, plan.workers, plan.steps_per_execution) == (network.engine, 2, 2)
    assert Simulator(costs, network).step_seconds(plan) > 0


def test_first_k() -> None:
    plan = first_k_plan(chain_costs([4, 4, 4]), HOROVOD, 2)
    assert plan.order == ("W3", "X3", "X2", "W1", "W2")
    assert names(plan) == ["w3", "w1", "w2"]
    with pytest.raises(UserError, match="k = 4"):
        first_k_plan(chain_costs([4, 4, 4]), HOROVOD, 4)


def test_best_first_k_within_memory() -> None:
    costs = chain_costs([8, 8, 8, 40])
    costs = replace(
        costs,
        tensors=tuple(
            # What X makes is read by the dW of the layer below, which first-k defers.
            SavedTensor(100, f"X{layer + 1}", (f"W{layer}",))
            for layer in (1, 2, 3)
        ),
    )
    simulator = Simulator(costs, HOROVOD)
    every = [first_k_plan(costs, HOROVOD, k, steps_per_execution=2) for k in range(5)]
    free = named(costs, HOROVOD, 2).best_first_k()
    assert free == min(every, key=simulator.step_seconds)
    tight = named(costs, HOROVOD, 2).best_first_k(memory_bytes=250)
    assert simulator.peak_bytes(free) > 250 >= simulator.peak_bytes(tight)


@pytest.mark.parametrize("seed", range(4))
def test_best_first_k_of_many_layers_is_about_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    costs = chain_costs([4 * rng.randint(1, 1000) for _ in range(120)])
    network = replace(HOROVOD, seconds_per_byte=rng.uniform(0.3, 1.5) / 1000)
    seconds = Simulator(costs, network).step_seconds
    every = [first_k_plan(costs, network, k, steps_per_execution=2) for k in range(121)]
    found = named(costs, network, 2).best_first_k()
    assert seconds(found) <= 1.002 * min(map(seconds, every))


def test_priority_of_an_engine_that_has_it() -> None:
    plan = named(chain_costs([4, 4, 4]), BYTEPS, partition_bytes=64).priority(credit=2)
    assert names(plan) == ["w1", "w2", "w3"]
    assert plan.order == ("W3", "X3", "W2", "X2", "W1")
    assert (plan.credit, plan.by_urgency, plan.partition_bytes) == (2, True, 64)


def test_priority_of_an_engine_without_it_is_the_sequence_it_would_yield() -> None:
    """Layer 1 is ready while the first half of layer 2 travels, so it goes before the other."""
    costs = chain_costs([64, 128, 64], weight_gradient=10.0)
    network = replace(HOROVOD, seconds_per_byte=15 / 64)
    plans = named(costs, network, partition_bytes=64)
    plan = plans.priority(credit=1)
    # In the step's end: w3 at 10, W2 at 21, w3 ends at 25, w2's first half, w1 at 32.
    assert names(plan) == ["w3", "w2[0/2]", "w1", "w2[1/2]"]
    assert not plan.by_urgency
    everything_at_once = plans.priority(credit=None)
    assert names(everything_at_once) == ["w3", "w2[0/2]", "w2[1/2]", "w1"]


def test_best_priority_has_the_best_credit() -> None:
    costs = chain_costs([64, 128, 64])
    network = replace(HOROVOD, latency=5.0)
    plans = named(costs, network, 2, partition_bytes=64)
    plan = plans.best_priority()
    seconds = Simulator(costs, network).step_seconds
    every = [plans.priority(credit) for credit in (1, 2, 4, 8, 16, None)]
    assert seconds(plan) == min(map(seconds, every)) < seconds(every[0])


@given(st.data(), st.booleans())
def test_all_are_legal(data: DataObject, by_urgency: bool) -> None:
    costs = data.draw(instances.step_costs())
    network = replace(data.draw(instances.networks()), by_urgency=by_urgency)
    simulator = Simulator(costs, network)
    plans = [
        baseline_plan(costs, network),
        *(first_k_plan(costs, network, k) for k in range(len(movable_layers(costs)) + 1)),
        named(costs, network, 2, partition_bytes=128).priority(),
    ]
    for plan in plans:  # the simulator refuses what is not legal
        assert simulator.step_seconds(plan) > 0 or costs.compute_seconds == 0
