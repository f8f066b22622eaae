"""What selections cost with several workers, and how good those are that are found by it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.elastic.cost_model import OneWorker, SeveralWorkers
from ooodist.elastic.selection.select import select
from ooodist.elastic.timing import selectable_of
from ooodist.planner.costs import Network, StepCosts
from tests.elastic.brute_force import check_close_to_the_best
from tests.elastic.selection.test_select import random_branches, total
from tests.planner.chains import chain_costs


def cost_model_of(costs: StepCosts, network: Network, bucket_bytes: int = 0) -> SeveralWorkers:
    return SeveralWorkers(costs, network, bucket_bytes, credit=None, steps_per_execution=1)


def random_costs(generator: random.Random) -> StepCosts:
    """A chain of up to 8 layers, no two of which are alike."""
    sizes = [generator.randint(1, 100) for _ in range(generator.randint(3, 8))]
    costs = chain_costs(sizes, update=0.05)

    def uneven(units: Sequence[object]) -> tuple[object, ...]:
        return tuple(replace(unit, seconds=generator.uniform(0.1, 2.0)) for unit in units)

    return replace(costs, forward=uneven(costs.forward), backward=uneven(costs.backward))


def random_network(generator: random.Random) -> Network:
    """From exchanges that are hidden to such that take longer than computing."""
    return Network(
        "horovod",
        workers=2,
        latency=generator.uniform(0, 0.1),
        fixed=generator.uniform(0, 0.1),
        seconds_per_byte=10 ** generator.uniform(-3.5, -1),
        cpu_seconds_per_byte=generator.choice([0.0, 1e-3]),
    )


def test_close_to_the_best_of_all_within_the_budget() -> None:
    """Chains of 3 to 8 layers; the network is anything from fast to slow."""
    generator = random.Random(0)
    check_close_to_the_best(
        lambda: cost_model_of(random_costs(generator), random_network(generator)), generator
    )


@pytest.mark.parametrize(
    "network",
    [
        Network("horovod", workers=2, seconds_per_byte=1.0),
        Network("byteps", workers=2, seconds_per_byte=1e-3, pull_seconds_per_byte=1.0),
        Network("horovod", workers=2, cpu_seconds_per_byte=1.0),
    ],
    ids=["sent", "pulled", "copied"],
)
def test_what_is_cheap_to_exchange_is_preferred_where_exchanging_dominates(
    network: Network,
) -> None:
    """Layers that cost the same to compute, every second of them 50 times as large."""
    costs = chain_costs([1, 50, 1, 50, 1, 50, 1, 1])
    cost_model = cost_model_of(costs, network)
    items = cost_model.choice.items
    large = {n for n, item in enumerate(items) if set(item.weights) & {"w2", "w4", "w6"}}
    importance = [1.0] * len(items)
    forced = frozenset({0})
    budget = 0.3 * cost_model.seconds(range(len(items)))
    found = cost_model.select(select, importance, budget, forced)
    assert not found & large
    assert len(found) == len(items) - len(large)

    # One worker knows nothing of the exchange: with what it selects the step is too long, and what
    # still fits of its selections matters less.
    blind = OneWorker(cost_model.choice)
    least, most = blind.seconds(forced), cost_model.choice.full_seconds
    virtual = [least + share / 50 * (most - least) for share in range(51)]
    proposed = [blind.select(select, importance, seconds, forced) for seconds in virtual]
    assert cost_model.seconds(proposed[-1]) > budget
    fitting = [mask for mask in proposed if cost_model.seconds(mask) <= budget]
    assert total(importance, found) > max(total(importance, mask) for mask in fitting)


def test_what_costs_nothing_to_compute_may_be_costly_to_exchange() -> None:
    """Backward passes of no length, as on a machine whose noise is larger than they are."""
    costs = chain_costs([1, 1, 1, 1], update=0.0)
    free = tuple(replace(unit, seconds=0.0) for unit in costs.backward)
    cost_model = cost_model_of(
        replace(costs, backward=free), Network("horovod", 2, seconds_per_byte=1.0)
    )
    everything = frozenset(range(len(cost_model.choice.items)))
    importance = [1.0] * len(everything)
    forced = frozenset({0})
    least, full = cost_model.seconds(forced), cost_model.seconds(everything)
    assert cost_model.computing(forced) == cost_model.computing(everything)
    assert cost_model.select(select, importance, least, forced) == forced
    for share in (0.4, 0.8):
        found = cost_model.select(select, importance, least + share * (full - least), forced)
        assert forced < found < everything


def test_an_exchange_that_is_hidden_costs_nothing() -> None:
    """The upper layers' gradients travel while the lower ones are computed."""
    costs = chain_costs([1, 10, 10, 10], forward=1.0, weight_gradient=1.0)
    slow = cost_model_of(costs, Network("horovod", workers=2, seconds_per_byte=0.1))
    none = cost_model_of(costs, Network("horovod", workers=2))
    everything = range(4)
    assert slow.seconds(everything) == pytest.approx(none.seconds(everything) + 0.1)
    assert slow.seconds([0]) > none.seconds([0]) + 0.9  # nothing is left to hide it


def test_without_exchange_a_step_takes_what_its_units_take() -> None:
    generator = random.Random(1)
    for workers in (1, 2):
        costs = random_costs(generator)
        cost_model = cost_model_of(costs, Network("any", workers=workers))
        choice = selectable_of(costs)
        for _ in range(20):
            mask = frozenset(n for n in range(len(choice.items)) if generator.random() < 0.5) | {0}
            assert cost_model.seconds(mask) == pytest.approx(choice.seconds(mask))


@given(st.floats(0, 10), st.integers(1, 8), st.integers(0, 99))
def test_steps_of_one_call_share_its_launch(launch: float, steps: int, seed: int) -> None:
    costs = replace(random_costs(random.Random(seed)), launch_seconds=launch)
    cost_model = replace(cost_model_of(costs, Network("any", 2)), steps_per_execution=steps)
    for selected in ([0], range(len(cost_model.choice.items))):
        seconds = cost_model.choice.seconds(selected) - launch + launch / steps
        assert cost_model.computing(selected) == pytest.approx(seconds)
        assert cost_model.simulated(selected) == pytest.approx(seconds)


def test_one_worker_is_the_exact_selection() -> None:
    generator = random.Random(2)
    for _ in range(50):
        choice = random_branches(generator, generator.random, most_items=10)
        importance = [generator.uniform(-0.2, 1) for _ in choice.items]
        forced = frozenset(choice.head)
        budget = choice.seconds(forced) + generator.random() * choice.full_seconds
        cost_model = OneWorker(choice)
        found = cost_model.select(select, importance, budget, forced)
        assert found == select(choice, importance, budget, forced)
        assert cost_model.seconds(found) == choice.seconds(found)


def test_more_than_there_is_time_for() -> None:
    cost_model = cost_model_of(
        chain_costs([10, 10]), Network("horovod", workers=2, seconds_per_byte=1.0)
    )
    with pytest.raises(ValueError, match="takes"):
        cost_model.select(select, [1.0, 1.0], 0.9 * cost_model.seconds([0]), frozenset({0}))
