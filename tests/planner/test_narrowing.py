"""Which gradients travel in 16 bits, and what that costs in simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel import plan as plans
from ooodist.planner.data_parallel.bound import lower_bound
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.search import (
    Limits,
    comparison,
    in_wire,
    make_plan,
    plans_to_try,
    predicted,
)
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.narrowing import LEAST_GAIN, TOLERANCE, all_in, narrow_bytes
from ooodist.planner.wire import at_least, narrowed
from tests.planner import instances
from tests.planner.chains import chain_costs, each_alone
from tests.thorough import few

LIMITS = Limits(evaluations=400, carrying=True)
PLANNED = in_wire(LIMITS, "planned")
ALL = in_wire(LIMITS, "float16")
LAYER = 4 << 20  # bytes


def network_of(costs: StepCosts, ratio: float, *, by_urgency: bool = False) -> Network:
    """Exchanges take ``ratio`` times as long as the computation."""
    num_bytes = sum(weight.num_bytes for weight in costs.weights)
    return Network(
        "byteps" if by_urgency else "horovod",
        2,
        seconds_per_byte=ratio * costs.compute_seconds / num_bytes,
        by_urgency=by_urgency,
    )


def seconds_of(plan: Plan) -> float:
    assert plan.predicted is not None
    return plan.predicted.step_seconds


def doubled(costs: StepCosts) -> StepCosts:
    """Twice the bytes: in 16 bits, gradients can then be split as before."""
    weights = tuple(replace(each, num_bytes=2 * each.num_bytes) for each in costs.weights)
    return replace(costs, weights=weights)


@given(st.data())
def test_a_plan_that_narrows_all_is_one_of_narrowed_costs(data: DataObject) -> None:
    costs = data.draw(instances.step_costs())
    network = data.draw(instances.networks())
    plan = data.draw(instances.plans(costs))
    costs = doubled(costs)
    narrow = all_in(plan, costs, "float16")
    assert Simulator(*narrowed(costs, network, "float16")).step_seconds(plan) == pytest.approx(
        Simulator(costs, network).step_seconds(narrow)
    )
    if network.workers > 1:
        peak = Simulator(*narrowed(costs, network, "float16")).peak_bytes(plan)
        assert peak == Simulator(costs, network).peak_bytes(narrow)


@given(st.data())
def test_no_plan_is_below_the_bound_whatever_it_narrows(data: DataObject) -> None:
    costs = data.draw(instances.step_costs())
    network = data.draw(instances.networks())
    plan = data.draw(instances.plans(costs))
    costs = doubled(costs)
    chosen = data.draw(st.sets(st.sampled_from(range(len(plan.exchanges) or 1))))
    weights = [e.weights for i, e in enumerate(plan.exchanges) if i in chosen]
    names = tuple(dict.fromkeys(name for each in weights for name in each))
    mixed = replace(plan, wire="bfloat16", narrow=names)
    bound = lower_bound(
        *at_least(costs, network, "bfloat16"), plan.steps_per_execution, carrying=True
    )
    assert bound <= Simulator(costs, network).step_seconds(mixed) * (1 + 1e-9)


def test_bytes_and_cpu_time_of_a_narrow_exchange() -> None:
    costs = chain_costs([LAYER, 2 * LAYER])
    network = Network("horovod", 2, seconds_per_byte=1e-6, cpu_seconds_per_copied_byte=1e-9)
    plan = Plan("mixed", None, each_alone("w2", "w1"), wire="float16", narrow=("w2",))
    simulator = Simulator(costs, network)
    spans = {span.exchange.name: span for span in simulator.run(plan).exchanges}
    assert spans["w2"].num_bytes == LAYER  # 2 * LAYER in full
    assert spans["w1"].num_bytes == LAYER
    exact = replace(plan, wire=None, narrow=())
    residual = simulator.peak_bytes(plan) - simulator.peak_bytes(exact)
    assert residual == 2 * LAYER == narrow_bytes(plan, costs)
    assert simulator.step_seconds(plan) < simulator.step_seconds(exact)


@pytest.mark.parametrize(("layers", "by_urgency"), [(6, True), (12, False)])
def test_all_stays_exact_where_exchanges_can_be_hidden(layers: int, by_urgency: bool) -> None:
    costs = chain_costs([LAYER] * layers)
    found = make_plan(costs, network_of(costs, 0.5, by_urgency=by_urgency), limits=PLANNED)
    assert found.wire is None
    assert not found.narrow


@pytest.mark.parametrize(("layers", "by_urgency"), [(6, True), (12, False)])
def test_most_is_halved_where_exchanges_take_twice_as_long(layers: int, by_urgency: bool) -> None:
    costs = chain_costs([LAYER] * layers)
    network = network_of(costs, 2.0, by_urgency=by_urgency)
    exact, some, everything = (
        make_plan(costs, network, limits=limits) for limits in (LIMITS, PLANNED, ALL)
    )
    whole = sum(weight.num_bytes for weight in costs.weights)
    assert some.wire == "float16"
    assert 0.5 * whole < narrow_bytes(some, costs) <= whole == narrow_bytes(everything, costs)
    assert seconds_of(some) <= (1 + TOLERANCE) * seconds_of(everything)
    assert seconds_of(some) < (1 - LEAST_GAIN) * seconds_of(exact)


@few(5)
@given(st.integers(2, 7), st.floats(0.2, 4.0), st.randoms(use_true_random=False))
def test_only_what_is_needed_is_narrow(layers: int, ratio: float, rng: object) -> None:
    """Exact where that is nearly as fast; else no more in full width would be."""
    sizes = [LAYER * rng.randint(1, 8) for _ in range(layers)]  # type: ignore[attr-defined]
    costs = chain_costs(sizes)
    network = network_of(costs, ratio)
    few = replace(PLANNED, evaluations=100, max_steps_per_execution=2)
    exact = make_plan(costs, network, limits=in_wire(few, "float32"))
    found = make_plan(costs, network, limits=few)
    assert plans.from_yaml(plans.yaml_dataclass.dump(found), "text") == found
    if not found.narrow:
        assert seconds_of(found) == seconds_of(exact)
        return
    assert seconds_of(found) < (1 - LEAST_GAIN) * seconds_of(exact)
    simulator = Simulator(costs, network)
    for exchange in found.exchanges:
        if exchange.weights[0] in found.narrow:
            others = tuple(name for name in found.narrow if name not in exchange.weights)
            assert simulator.step_seconds(replace(found, narrow=others)) > seconds_of(found)


def test_a_trial_has_the_plans_of_both_widths() -> None:
    costs = chain_costs([LAYER] * 6)
    network = network_of(costs, 1.05)  # where the exact plan is not much slower
    first, *others = plans_to_try(costs, network, limits=PLANNED)
    assert first.narrow
    assert any(not plan.narrow for plan in others)
    assert all(plan.wire == "float16" for plan in plans_to_try(costs, network, limits=ALL))


def test_a_row_of_its_own_beside_those_of_full_width() -> None:
    costs = chain_costs([LAYER] * 6)
    network = network_of(costs, 2.0)
    rows = comparison(costs, network, limits=ALL)
    assert [*rows][-2:] == ["carried", "narrow"]
    assert [name for name, plan in rows.items() if plan.wire] == ["narrow"]
    bound = rows["narrow"].predicted
    assert bound is not None
    assert bound.lower_bound_seconds < seconds_of(rows["narrow"]) < seconds_of(rows["carried"])
    full = predicted(replace(rows["narrow"], wire=None, narrow=()), costs, network).predicted
    assert full is not None
    assert full.lower_bound_seconds > bound.lower_bound_seconds


def test_memory_for_residuals_is_needed() -> None:
    costs = replace(chain_costs([LAYER] * 6), base_bytes=1)
    network = network_of(costs, 2.0)
    limits = replace(PLANNED, memory_bytes=LAYER)
    assert not make_plan(costs, network, limits=limits).narrow
    enough = replace(limits, memory_bytes=7 * LAYER)
    assert make_plan(costs, network, limits=enough).narrow
