"""The search: never worse than plans with a name, near the best of all, within its limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import Phase, example, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from ooodist.errors import UserError
from ooodist.planner.cluster import describe_network
from ooodist.planner.costs import Network, SavedTensor, StepCosts, UnitCost, WeightCost
from ooodist.planner.data_parallel import plan as plans
from ooodist.planner.data_parallel.candidates import Family
from ooodist.planner.data_parallel.named import CREDITS, NamedPlans, baseline_plan
from ooodist.planner.data_parallel.orders import baseline_order, is_legal
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange
from ooodist.planner.data_parallel.planner import (
    FEWER_STEPS_TOLERANCE,
    SIMPLER_TOLERANCE,
    Planner,
)
from ooodist.planner.data_parallel.search import (
    MOST_TRIED,
    TRIED,
    Limits,
    comparison,
    make_plan,
    plans_to_try,
    predicted,
)
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.progress import SearchState
from ooodist.util import yaml_dataclass
from tests.planner import instances
from tests.planner.chains import chain_costs, uneven_costs
from tests.processor_time import fastest
from tests.thorough import few

FEW = Limits(max_steps_per_execution=4, evaluations=60)
MEGABYTE = 1 << 20


def seconds_of(plan: Plan) -> float:
    assert plan.predicted is not None
    return plan.predicted.step_seconds


@few(25)
@given(st.data(), st.booleans())
def test_legal_and_never_worse_than_plans_with_a_name(data: DataObject, by_urgency: bool) -> None:
    costs = data.draw(instances.step_costs())
    network = replace(data.draw(instances.networks()), by_urgency=by_urgency)
    simulator = Simulator(costs, network)
    found = make_plan(costs, network, limits=FEW)
    assert seconds_of(found) == simulator.step_seconds(found)  # which refuses what is not legal
    assert found.order is None or is_legal(costs, found.order)
    assert plans.from_yaml(yaml_dataclass.dump(found), "text") == found
    for steps in (1, found.steps_per_execution):
        for named in (
            baseline_plan(costs, network, steps_per_execution=steps),
            NamedPlans(simulator, steps).best_first_k(),
            NamedPlans(simulator, steps).best_priority(),
        ):
            assert seconds_of(found) <= simulator.step_seconds(named) * (1 + 1e-8)


@few(25)
@given(st.data(), st.booleans())
def test_with_carrying_never_worse_than_without(data: DataObject, by_urgency: bool) -> None:
    costs = data.draw(instances.step_costs())
    network = replace(data.draw(instances.networks()), by_urgency=by_urgency)
    without = make_plan(costs, network, limits=FEW)
    found = make_plan(costs, network, limits=replace(FEW, carrying=True))
    assert without.carried == ()
    assert seconds_of(found) == Simulator(costs, network).step_seconds(found)
    assert seconds_of(found) <= seconds_of(without) * (1 + 1e-8)
    assert found.name == ("carried" if found.carried else "planned")
    assert plans.from_yaml(yaml_dataclass.dump(found), "text") == found


def test_the_number_of_steps_is_not_settled_before_the_search() -> None:
    """With one step nothing helps; with eight, what helps is splitting the large gradient."""
    costs = chain_costs([4096, 4_000_000])
    network = Network("collective", 8, seconds_per_byte=1e-6)

    def found(steps: int | None) -> Plan:
        limits = Limits(steps_per_execution=steps, evaluations=1000)
        return make_plan(costs, network, limits=limits)

    assert seconds_of(found(1)) == pytest.approx(7.004, abs=1e-3)
    assert seconds_of(found(8)) == pytest.approx(6.129, abs=1e-3)
    assert seconds_of(found(None)) == pytest.approx(6.129, abs=1e-3)
    assert found(None).steps_per_execution == 8


def test_half_of_a_large_gradient_is_carried() -> None:
    """Half is exchanged beside X2 and W1, and half beside the next F1: nothing is faster."""
    costs = chain_costs([4096, 4_000_000])
    network = Network("collective", 8, seconds_per_byte=1e-6)
    for steps in (1, None):
        limits = Limits(steps_per_execution=steps, evaluations=1000, carrying=True)
        found = make_plan(costs, network, limits=limits)
        assert found.steps_per_execution == 1
        assert found.predicted is not None
        assert found.predicted.lower_bound_seconds == pytest.approx(6.004, abs=1e-3)
        assert seconds_of(found) == pytest.approx(6.004, abs=1e-3)
        halves = [each for each in found.exchanges if each.weights == ("w2",)]
        assert {each.carried for each in halves} == {False, True}


@few(10)
@given(
    st.lists(st.integers(1 << 14, 1 << 20), min_size=2, max_size=6), st.sampled_from([0.5, 1, 2])
)
def test_to_carry_half_of_each_gradient_is_never_faster(numbers: list[int], ratio: float) -> None:
    """As DeAR does; see Family.all_in_halves."""
    costs = chain_costs([4 * number for number in numbers])
    seconds_per_byte = ratio * costs.compute_seconds / (4 * sum(numbers))
    network = Network("any", 8, fixed=0.01, seconds_per_byte=seconds_per_byte)
    names = [weight.name for weight in costs.weights]
    carried = (PlannedExchange((name,), 1, 2, carried=True) for name in names)
    others = (PlannedExchange((name,), 0, 2) for name in reversed(names))
    halves = Plan("halves", None, (*carried, *others))
    limits = Limits(steps_per_execution=1, evaluations=60, carrying=True)
    most = Simulator(costs, network).step_seconds(halves) * (1 + SIMPLER_TOLERANCE)
    assert seconds_of(make_plan(costs, network, limits=limits)) <= most


def test_what_calls_of_one_step_gain_by_carrying_is_found_with_freedom() -> None:
    """Also by the search for any number of steps: 3 % less than what longer calls led to."""
    costs = replace(uneven_costs(12), launch_seconds=2e-3)
    per_byte = costs.compute_seconds / sum(weight.num_bytes for weight in costs.weights)
    network = Network("any", 8, latency=1e-4, fixed=2e-3, seconds_per_byte=per_byte)
    limits = Limits(evaluations=1000, carrying=True)
    one, eight = (
        make_plan(costs, network, limits=replace(limits, steps_per_execution=n)) for n in (1, 8)
    )
    free = make_plan(costs, network, limits=limits)
    tolerance = (1 + SIMPLER_TOLERANCE) * (1 + FEWER_STEPS_TOLERANCE)
    assert seconds_of(free) <= min(seconds_of(one), seconds_of(eight)) * tolerance


# Always the same examples: so short a search is out of luck in about one of a hundred.
@seed(2)
@settings(max_examples=8, database=None, phases=[Phase.generate])
@given(st.data(), st.booleans(), st.booleans())
def test_more_freedom_is_never_slower(data: DataObject, by_urgency: bool, carrying: bool) -> None:
    """Than a fixed number of steps, fewer of them, or fewer credits, by more than what is simpler.

    Where tracing does not count, fewer steps may be slower by 1 % as well.
    """
    costs = replace(data.draw(instances.step_costs()), trace_seconds=1.0)
    network = replace(data.draw(instances.networks(workers=2)), by_urgency=by_urgency)
    total_steps = data.draw(st.sampled_from([None, 100, 10**9]))
    limits = Limits(
        max_steps_per_execution=4, total_steps=total_steps, evaluations=600, carrying=carrying
    )

    def score(limits: Limits) -> float:
        plan = make_plan(costs, network, limits=limits)
        tracing = plan.steps_per_execution / total_steps if total_steps else 0.0
        return seconds_of(plan) + tracing

    narrower = [replace(limits, steps_per_execution=steps) for steps in (1, 2, 4)]
    narrower += [replace(limits, max_steps_per_execution=2), replace(limits, carrying=False)]
    narrower += [replace(limits, credits=credits) for credits in ((1,), (None,))]
    tolerance = 1 + SIMPLER_TOLERANCE
    tolerance *= 1 + FEWER_STEPS_TOLERANCE if total_steps is None else 1.0
    free = score(limits)
    for each in narrower:
        assert free <= score(each) * tolerance + 1e-9


@few(15)
@given(st.data(), st.booleans())
def test_the_memory_limit_is_kept(data: DataObject, carrying: bool) -> None:
    costs = data.draw(instances.step_costs())
    network = data.draw(instances.networks(workers=2))
    simulator = Simulator(costs, network)
    few = replace(FEW, carrying=carrying)
    free = make_plan(costs, network, limits=few)
    least = min(
        simulator.peak_bytes(baseline_plan(costs, network, steps_per_execution=k)) for k in (1, 2)
    )
    most = max(least, simulator.peak_bytes(free))
    memory = data.draw(st.integers(least, most))
    found = make_plan(costs, network, limits=replace(few, memory_bytes=memory))
    assert found.predicted is not None
    assert found.predicted.peak_bytes == simulator.peak_bytes(found) <= memory


def test_too_little_memory_says_how_much_it_takes() -> None:
    costs = replace(
        chain_costs([4, 4]), tensors=(SavedTensor(70, "F1", ("W2", "X2")),), base_bytes=30
    )
    network = Network("any", 2)
    assert make_plan(costs, network, limits=replace(FEW, memory_bytes=100)).order is None
    with pytest.raises(UserError, match="has 99 bytes, but a step needs at least 100"):
        make_plan(costs, network, limits=replace(FEW, memory_bytes=99))


def three_layers(seconds: list[float], sizes: list[int]) -> StepCosts:
    """Six backward units: X3 W3 X2 W2 X1 W1, of which W1 needs X1 and so on."""
    f, x, w = seconds[:3], seconds[3:6], seconds[6:]
    layers = (1, 2, 3)
    backward: list[UnitCost] = []
    for layer in reversed(layers):
        above = (f"X{layer + 1}",) if layer < 3 else ()
        backward.append(UnitCost(f"X{layer}", "dX", x[layer - 1], above))
        backward.append(UnitCost(f"W{layer}", "dW", w[layer - 1], (f"X{layer}",), (f"w{layer}",)))
    return StepCosts(
        tuple(UnitCost(f"F{n}", "F", f[n - 1], weights=(f"w{n}",)) for n in layers),
        tuple(backward),
        tuple(WeightCost(f"w{n}", sizes[n - 1], update_seconds=0.1) for n in layers),
    )


def every_plan(costs: StepCosts, plan: Plan) -> Iterator[Plan]:
    """All legal orders, and all orders of whole exchanges for each."""
    exchanges = [PlannedExchange((weight.name,)) for weight in costs.weights]
    for order in itertools.permutations(baseline_order(costs)):
        if is_legal(costs, order):
            for sequence in itertools.permutations(exchanges):
                yield replace(plan, order=order, exchanges=sequence)


@example([1.122, 1.326, 0.381, 0.766, 0.969, 0.55, 1.122, 1.46, 1.767], [148] * 3, False, 3)
@example([1.038, 1.538, 1.01, 0.851, 0.786, 0.926, 1.557, 0.455, 1.1], [4, 140, 264], False, 2)
@few(4)
@given(
    st.lists(st.floats(0.1, 2), min_size=9, max_size=9),
    st.lists(st.integers(1, 100).map(lambda n: 4 * n), min_size=3, max_size=3),
    st.booleans(),
    st.sampled_from([1, 2, 3]),
)
def test_as_good_as_the_best_of_all_plans(
    seconds: list[float], sizes: list[int], by_urgency: bool, steps: int
) -> None:
    costs = three_layers(seconds, sizes)
    network = Network(
        "any", 2, latency=0.05, fixed=0.05, seconds_per_byte=0.02, by_urgency=by_urgency
    )
    limits = Limits(steps_per_execution=steps, credits=(1,), partitions=(1 << 20,))
    found = make_plan(costs, network, limits=limits)
    simulator = Simulator(costs, network)
    like = replace(found, credit=1)
    best = min(simulator.step_seconds(plan) for plan in every_plan(costs, like))
    good = best * 1.002  # what a simpler plan may lose
    # Of 16 walks, two missed the best plan of the second example, by 1.5 %.
    assert seconds_of(found) <= good or any(
        seconds_of(make_plan(costs, network, limits=limits, seed=seed)) <= good for seed in (1, 2)
    )


def test_ten_equal_layers() -> None:
    """Exchange = compute. First-k with every k brings 1.10x, a better order more."""
    costs = chain_costs([18] * 10, forward=6, output_gradient=6, weight_gradient=6)
    network = Network("any", 2, seconds_per_byte=1.0)
    limits = Limits(steps_per_execution=16)
    found = make_plan(costs, network, limits=limits)
    baseline = predicted(baseline_plan(costs, network, steps_per_execution=16), costs, network)
    first_k = predicted(NamedPlans(Simulator(costs, network), 16).best_first_k(), costs, network)
    assert seconds_of(baseline) / seconds_of(first_k) == pytest.approx(1.10, abs=0.02)
    assert seconds_of(baseline) / seconds_of(found) >= 1.18
    assert found.predicted is not None
    assert seconds_of(found) <= 1.05 * found.predicted.lower_bound_seconds


def test_ten_equal_layers_with_a_call_for_each_step() -> None:
    """Nothing helps as long as a call ends with all its updates; carrying brings 1.24x."""
    costs = chain_costs([18] * 10, forward=6, output_gradient=6, weight_gradient=6)
    network = Network("any", 2, seconds_per_byte=1.0)
    limits = Limits(steps_per_execution=1, carrying=True)
    rows = comparison(costs, network, limits=limits)
    assert list(rows)[-2:] == ["planned", "carried"]
    planned, carried = rows["planned"], rows["carried"]
    assert (seconds_of(planned), planned.carried) == (pytest.approx(246), ())
    assert seconds_of(planned) / seconds_of(carried) >= 1.2
    # Simpler ones are as good with fewer: most is exchanged in the call, beside the last dW.
    assert 1 <= len(carried.carried) <= 5
    assert carried.predicted is not None
    assert seconds_of(carried) <= 1.05 * carried.predicted.lower_bound_seconds


def deep_costs(layers: int) -> StepCosts:
    """Like a convolutional net: activations shrink and weights grow towards the loss."""
    costs = chain_costs(
        [(1 + layer) * MEGABYTE // 10 // 4 * 4 for layer in range(layers)],
        forward=2e-3,
        output_gradient=2e-3,
        weight_gradient=2e-3,
        update=1e-4,
    )
    return replace(costs, launch_seconds=5e-3, trace_seconds=1.0)


@pytest.mark.parametrize("by_urgency", [False, True])
def test_fast_and_the_same_again(by_urgency: bool) -> None:
    costs = deep_costs(54)
    assert len(costs.forward + costs.backward) >= 160
    exchange = sum(unit.seconds for unit in costs.forward + costs.backward)
    total = sum(weight.num_bytes for weight in costs.weights)
    network = Network(
        "any", 2, latency=1e-3, fixed=1e-3, seconds_per_byte=exchange / total, by_urgency=by_urgency
    )
    plans: list[Plan] = []
    assert fastest(lambda: plans.append(make_plan(costs, network))) < 15  # 5 s on a free machine
    (found,) = plans
    assert found.predicted is not None
    assert found.predicted.baseline_seconds / seconds_of(found) > 1.2
    short = Limits(evaluations=240)
    again = [make_plan(costs, network, limits=short, seed=seed) for seed in (1, 1)]
    assert again[0] == again[1]
    assert seconds_of(found) <= min(map(seconds_of, again)) * 1.01


@pytest.mark.parametrize("by_urgency", [False, True])
def test_three_hundred_layers_take_about_as_many_plans_as_a_hundred(by_urgency: bool) -> None:
    simulated: list[int] = []
    for layers in (100, 300):
        costs = uneven_costs(layers)
        total = sum(weight.num_bytes for weight in costs.weights)
        network = Network(
            "any", 8, 1e-4, seconds_per_byte=costs.compute_seconds / total, by_urgency=by_urgency
        )
        states: list[SearchState] = []
        limits = Limits(max_steps_per_execution=2, credits=(1, 4), evaluations=60)
        found = make_plan(costs, network, limits=limits, progress=states.append)
        simulated.append(states[-1].simulated)
    assert simulated[1] < 2 * simulated[0] < 2000
    steps, simulator = found.steps_per_execution, Simulator(costs, network)
    for named in (
        baseline_plan(costs, network, steps_per_execution=steps),
        NamedPlans(simulator, steps).best_first_k(),
        NamedPlans(simulator, steps).best_priority(credits=(1, 4)),
    ):
        assert seconds_of(found) <= simulator.step_seconds(named) * (1 + 1e-8)


def test_baseline_where_there_is_nothing_to_gain() -> None:
    costs = deep_costs(5)
    for network in (Network("any", 2), Network("local", 1, seconds_per_byte=1.0)):
        found = make_plan(costs, network, limits=Limits(steps_per_execution=1, evaluations=100))
        assert (found.name, found.order) == ("planned", None)
        assert [len(exchange.weights) for exchange in found.exchanges] == [1] * 5


def test_small_gradients_share_buckets_where_an_exchange_costs_much() -> None:
    costs = chain_costs([4000] * 12)
    network = Network("any", 2, fixed=3.0, seconds_per_byte=1e-4)
    found = make_plan(costs, network, limits=Limits(max_steps_per_execution=2))
    assert len(found.exchanges) < 8


def test_large_gradients_are_split_where_an_urgent_one_waits() -> None:
    costs = chain_costs([MEGABYTE, 16 * MEGABYTE])
    network = Network("any", 2, seconds_per_byte=1 / MEGABYTE)
    found = make_plan(costs, network, limits=Limits(steps_per_execution=4))
    whole = replace(baseline_plan(costs, network), steps_per_execution=4)
    assert seconds_of(found) < Simulator(costs, network).step_seconds(whole)


def test_steps_per_execution_are_worth_their_tracing() -> None:
    costs = replace(chain_costs([18] * 10, forward=6), trace_seconds=100.0, launch_seconds=5.0)
    network = Network("any", 2, seconds_per_byte=1e-6)

    def steps(total_steps: int | None) -> int:
        limits = Limits(max_steps_per_execution=16, total_steps=total_steps, evaluations=60)
        return make_plan(costs, network, limits=limits).steps_per_execution

    assert steps(1) == steps(10) == 1
    assert steps(100) == 2
    assert steps(1000) == 8
    assert steps(100_000) == 16
    assert steps(None) == 8  # within 1 % of 16


def test_only_what_the_limits_allow() -> None:
    costs = chain_costs([18 * MEGABYTE] * 6)
    network = Network("byteps", 2, seconds_per_byte=1e-7, latency=0.1, by_urgency=True)
    limits = Limits(credits=(2,), partitions=(1 << 19,), steps_per_execution=3, evaluations=60)
    found = make_plan(costs, network, limits=limits)
    assert (found.credit, found.partition_bytes, found.steps_per_execution) == (2, 1 << 19, 3)


def test_comparison_tells_order_and_barrier_apart() -> None:
    costs = replace(chain_costs([18] * 6, forward=6), launch_seconds=1.0)
    network = Network("horovod", 2, seconds_per_byte=1.0)
    rows = comparison(costs, network, limits=Limits(max_steps_per_execution=4, evaluations=200))
    assert list(rows) == ["baseline", "tuned", "barrier_removed", "first_k", "priority", "planned"]
    assert [plan.name for plan in rows.values()] == list(rows)
    steps = rows["planned"].steps_per_execution
    assert [plan.steps_per_execution for plan in rows.values()] == [1, 1, steps, 1, steps, steps]
    assert all(plan.workers == 2 and plan.engine == "horovod" for plan in rows.values())
    assert all(
        seconds_of(rows["planned"]) <= seconds_of(plan) * (1 + 1e-8) for plan in rows.values()
    )
    assert rows["barrier_removed"].order is None


@pytest.mark.parametrize(
    "network",
    [
        describe_network("horovod", 4096, 1e10, 30e-6),
        describe_network("collective", 64, 1e10, 30e-6),
        describe_network("byteps", 64, 1e10, 30e-6),
    ],
    ids=lambda network: network.engine,
)
def test_planned_is_never_slower_than_a_row(network: Network) -> None:
    """Baseline and tuned have any number in flight, which plans for a ring may not choose."""
    credits = CREDITS if network.by_urgency else (1, 2)
    limits = Limits(credits=credits, max_steps_per_execution=2, evaluations=60)
    costs = chain_costs(
        [18 * MEGABYTE] * 6, forward=0.01, output_gradient=0.01, weight_gradient=0.01
    )
    rows = comparison(costs, network, limits=limits)
    best = min(seconds_of(plan) for plan in rows.values())
    assert seconds_of(rows["planned"]) <= best * (1 + 1e-8)
    assert seconds_of(rows["tuned"]) <= seconds_of(rows["baseline"]) * (1 + 1e-8)
    assert (rows["baseline"].credit, rows["baseline"].order) == (None, None)


def test_plans_to_try_are_the_best_and_those_that_may_well_be_as_fast() -> None:
    costs = deep_costs(5)
    total = sum(weight.num_bytes for weight in costs.weights)
    seconds = sum(unit.seconds for unit in costs.forward + costs.backward)
    network = Network("any", 2, latency=1e-3, fixed=1e-3, seconds_per_byte=seconds / total)
    limits = Limits(steps_per_execution=4, evaluations=200)
    plans = plans_to_try(costs, network, limits=limits)
    assert 1 <= len(plans) <= MOST_TRIED
    assert "planned" in {plan.name for plan in plans}
    times = [seconds_of(plan) for plan in plans]
    assert times == sorted(times)
    assert times[-1] <= (1 + TRIED) * times[0]
    # Each is another plan, whatever its name.
    assert len({replace(plan, name="", predicted=None) for plan in plans}) == len(plans)
    # None with a name that would be faster is left out.
    named = comparison(costs, network, limits=limits)
    assert times[0] <= min(map(seconds_of, named.values())) * 1.002


def test_plans_to_try_are_told_apart_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the search for plans that carry finds the best one that carries nothing."""
    costs = chain_costs([21, 5, 28], forward=5, output_gradient=4)
    network = Network("any", 2, fixed=3, seconds_per_byte=0.3)
    limits = Limits(steps_per_execution=1, evaluations=200)
    best = make_plan(costs, network, limits=limits)
    monkeypatch.setattr(Family, "improve", lambda _self, start, _steps, _score: start)
    monkeypatch.setattr(Planner, "_walk", lambda *_: [])
    worse = make_plan(costs, network, limits=limits)
    assert seconds_of(best) < seconds_of(worse)
    monkeypatch.setattr(Planner, "_carrying", lambda *_: [best])
    tried = plans_to_try(costs, network, limits=replace(limits, carrying=True))
    assert [plan.name for plan in tried].count("planned") == 1
    assert seconds_of(tried[0]) == seconds_of(best)


def test_what_carries_nothing_is_tried_beside_what_carries() -> None:
    costs = chain_costs([18] * 6, forward=6, output_gradient=6, weight_gradient=6)
    limits = Limits(steps_per_execution=1, evaluations=200, carrying=True)
    tried = plans_to_try(costs, Network("any", 2, seconds_per_byte=1.0), limits=limits)
    assert tried[0].name == "carried"
    assert tried[0].carried
    assert any(not plan.carried for plan in tried)


def test_plans_to_try_keep_the_limit_of_memory() -> None:
    costs = replace(
        chain_costs([4, 4]), tensors=(SavedTensor(70, "F1", ("W2", "X2")),), base_bytes=30
    )
    for plan in plans_to_try(costs, Network("any", 2), limits=replace(FEW, memory_bytes=100)):
        assert plan.predicted is not None
        assert plan.predicted.peak_bytes <= 100
    with pytest.raises(UserError, match="has 99 bytes, but a step needs at least 100"):
        plans_to_try(costs, Network("any", 2), limits=replace(FEW, memory_bytes=99))
