"""Which gradients travel in 16 bits: all of a plan's, or those whose time would be waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ooodist.planner.costs import StepCosts
from ooodist.planner.data_parallel.plan import Plan, Wire
from ooodist.planner.wire import is_narrowed

LEAST_GAIN = 0.05  # of a step's time: 16 bits change the numbers, so they must be worth it
TOLERANCE = 0.01  # how much slower, relatively, a step may be that sends more in full width


def all_narrow(plan: Plan, costs: StepCosts, wire: Wire) -> Plan:
    """The plan with all gradients in 16 bits that can travel so."""
    names = {weight.name for weight in costs.weights if is_narrowed(weight)}
    exchanged = (name for exchange in plan.exchanges for name in exchange.weights)
    return replace(
        plan, wire=wire, narrow=tuple(name for name in dict.fromkeys(exchanged) if name in names)
    )


def narrow_where_exposed(
    exact: Plan, narrow: Plan, costs: StepCosts, seconds: Callable[[Plan], float]
) -> Plan:
    """A plan in which only those gradients travel in 16 bits that would be waited for.

    It is ``exact`` unless 16 bits make a step shorter by at least LEAST_GAIN. Otherwise all of what
    is hidden anyway travels in full width, as far as a step stays within TOLERANCE of the shortest.

    Args:
        exact: the best plan in which nothing is narrow.
        narrow: the best plan in which everything is.
        costs: costs of the step.
        seconds: of a step of a plan; infinite if that has too little memory.
    """
    assert narrow.wire is not None
    same_order = replace(exact, wire=narrow.wire, narrow=narrow.narrow)
    shortest = min(seconds(narrow), seconds(same_order))
    if shortest > (1 - LEAST_GAIN) * seconds(exact):
        return exact
    worst = shortest * (1 + TOLERANCE)
    found = [
        _widened(plan, list(dict.fromkeys(e.weights for e in plan.exchanges)), seconds, worst)
        for plan in (same_order, narrow)
        if seconds(plan) <= worst
    ]
    return min(found, key=lambda plan: narrow_bytes(plan, costs))


def narrow_bytes(plan: Plan, costs: StepCosts) -> int:
    """The bytes of the gradients that travel in 16 bits, as they are in full width."""
    narrow = set(plan.narrow)
    return sum(weight.num_bytes for weight in costs.weights if weight.name in narrow)


def _widened(
    plan: Plan,
    groups: Sequence[tuple[str, ...]],
    seconds: Callable[[Plan], float],
    worst: float,
) -> Plan:
    """Sends as many of these groups of weights in full width as the time allows."""
    names = {name for group in groups for name in group}
    wider = replace(plan, narrow=tuple(name for name in plan.narrow if name not in names))
    if wider == plan or seconds(wider) <= worst:
        return wider
    if len(groups) == 1:
        return plan
    half = len(groups) // 2  # the first are exchanged beside what is still to be computed
    plan = _widened(plan, groups[:half], seconds, worst)
    return _widened(plan, groups[half:], seconds, worst)
