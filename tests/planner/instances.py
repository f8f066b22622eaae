"""Random costs, networks and plans that fit each other, for hypothesis."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ooodist.planner.costs import Network, SavedTensor, StepCosts, UnitCost, WeightCost
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange

# Eighths: sums of them are exact, so that many things happen at exactly the same time.
EIGHTHS: SearchStrategy[float] = st.integers(0, 16).map(lambda number: number / 8)
ANY: SearchStrategy[float] = st.floats(0, 2)


@st.composite
def step_costs(draw: DrawFn, seconds: SearchStrategy[float] = EIGHTHS) -> StepCosts:
    """Up to 4 F units, 7 backward units and 5 weights, with any needs and tensors."""
    weights = [
        WeightCost(f"w{number}", draw(st.integers(0, 100)) * 4, update_seconds=draw(seconds))
        for number in range(draw(st.integers(0, 5)))
    ]
    names = [weight.name for weight in weights]
    forward = [
        UnitCost(f"F:{number}", "F", draw(seconds), weights=draw(subsets(names)))
        for number in range(draw(st.integers(1, 4)))
    ]
    backward: list[UnitCost] = []
    unnamed = names
    for number in range(draw(st.integers(1, 7))):
        completes = draw(subsets(unnamed))
        unnamed = [name for name in unnamed if name not in completes]
        needs = draw(subsets([unit.name for unit in backward]))
        kind: Literal["dX", "dW"] = draw(st.sampled_from(["dX", "dW"]))
        backward.append(UnitCost(f"B:{number}", kind, draw(seconds), needs, completes))
    return StepCosts(
        tuple(forward),
        tuple(backward),
        tuple(weights),
        tuple(draw(st.lists(saved_tensors(forward, backward), max_size=6))),
        middle_seconds=draw(seconds),
        launch_seconds=draw(seconds),
        base_bytes=draw(st.integers(0, 100)),
    )


@st.composite
def saved_tensors(draw: DrawFn, forward: list[UnitCost], backward: list[UnitCost]) -> SavedTensor:
    """Read by units that run after the one that makes it, in each order that is allowed."""
    units = [*forward, *backward]
    made_by = draw(st.sampled_from(units))
    if made_by in forward:
        later = [unit.name for unit in units[units.index(made_by) + 1 :]]
    else:
        later = [unit.name for unit in backward if made_by.name in unit.needs]
    return SavedTensor(draw(st.integers(0, 100)), made_by.name, draw(subsets(later)))


@st.composite
def networks(
    draw: DrawFn, seconds: SearchStrategy[float] = EIGHTHS, workers: int | None = None
) -> Network:
    per_byte = seconds.map(lambda number: number / 64)
    return Network(
        "any",
        workers or draw(st.sampled_from([1, 2, 2, 2])),
        latency=draw(seconds),
        fixed=draw(seconds),
        seconds_per_byte=draw(per_byte),
        pull_seconds_per_byte=draw(per_byte),
        cpu_seconds_per_byte=draw(per_byte),
        cpu_seconds_per_exchange=draw(seconds),
        cpu_seconds_per_copied_byte=draw(per_byte),
    )


@st.composite
def plans(draw: DrawFn, costs: StepCosts) -> Plan:
    """Any order that is allowed; buckets, chunks and pieces in any sequence; some carried."""
    planned = tuple(draw(st.permutations(draw(exchanges(costs)))))
    carried = draw(st.just([]) | st.lists(st.sampled_from(planned))) if planned else []
    return Plan(
        name="any",
        order=draw(st.none() | orders(costs)),
        exchanges=tuple(replace(each, carried=each in carried) for each in planned),
        credit=draw(st.none() | st.integers(1, 3)),
        by_urgency=draw(st.booleans()),
        partition_bytes=draw(st.none() | st.integers(50, 200)),
        steps_per_execution=draw(st.integers(1, 4)),
    )


@st.composite
def orders(draw: DrawFn, costs: StepCosts) -> tuple[str, ...]:
    left = list(costs.backward)
    order: list[str] = []
    while left:
        unit = draw(st.sampled_from([unit for unit in left if {*unit.needs} <= {*order}]))
        left.remove(unit)
        order.append(unit.name)
    return tuple(order)


@st.composite
def exchanges(draw: DrawFn, costs: StepCosts) -> list[PlannedExchange]:
    buckets: dict[int, list[str]] = {}
    found: list[PlannedExchange] = []
    for weight in costs.weights:
        most = min(3, -(-weight.num_bytes // 64))
        parts = draw(st.integers(1, max(1, most)))
        if parts > 1:
            found += [PlannedExchange((weight.name,), part, parts) for part in range(parts)]
        else:
            buckets.setdefault(draw(st.integers(0, 4)), []).append(weight.name)
    return found + [PlannedExchange(tuple(names)) for names in buckets.values()]


def subsets(names: list[str]) -> SearchStrategy[tuple[str, ...]]:
    """In their order, and mostly of few."""
    if not names:
        return st.just(())
    chosen = st.lists(st.sampled_from(names), max_size=3, unique=True)
    return chosen.map(lambda found: tuple(name for name in names if name in found))
