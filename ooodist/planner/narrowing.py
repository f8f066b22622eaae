"""How each gradient travels: in full width, or in fewer bytes where its time would be waited for.

In the order of what is sent: in low rank of 4, 8, 16, 32, in 16 bits, in full width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ooodist.planner.costs import StepCosts
from ooodist.planner.data_parallel.plan import InLowRank, Plan, Wire
from ooodist.planner.low_rank import can_be_thin
from ooodist.planner.wire import is_narrowed

LEAST_GAIN = 0.05  # of a step's time: fewer bytes change the numbers, so they must be worth it
TOLERANCE = 0.01  # how much slower, relatively, a step may be that sends more
RANK_TOLERANCE = 0.02  # the same where low rank is needed: each doubling of it loses much less

Width: TypeAlias = Wire | int | None  # a dtype of 16 bits, a rank, or the gradient's own
Group: TypeAlias = tuple[str, ...]  # the weights of an exchange, which travel alike


def all_in(plan: Plan, costs: StepCosts, width: Wire | int, others: Wire | None = None) -> Plan:
    """The plan with all gradients in 16 bits or in low rank that can travel so.

    Args:
        plan: sends all in full width.
        costs: costs of the step.
        width: how.
        others: the 16 bits for those that cannot travel in low rank; None: their own width.
    """
    wire = others if isinstance(width, int) else width
    plan = _in_width(replace(plan, wire=wire), _groups(plan), costs, width)
    if wire in (None, width):
        return plan
    widths = _widths(plan)
    full = [group for group in _groups(plan) if widths[group[0]] is None]
    return _in_width(plan, full, costs, wire)


def wide_where_hidden(
    exact: Plan,
    best: Callable[[Wire | int], Plan],
    widths: Sequence[Width],
    costs: StepCosts,
    seconds: Callable[[Plan], float],
) -> Plan:
    """A plan in which gradients travel in as many bytes as a step has time for.

    It is ``exact`` unless fewer bytes make a step shorter by at least LEAST_GAIN. Otherwise each
    gradient has the first of the widths, then as many as possible the second, and so on, as far as
    a step still gains that much and stays within the tolerance of the shortest. All get wider
    together, as each width saves less of a gradient than the one before.

    Args:
        exact: the best plan in which all have full width.
        best: finds the best plan in which all that can have this width.
        widths: from the fewest bytes to the most, which is None.
        costs: costs of the step.
        seconds: of a step of a plan; infinite if that has too little memory.
    """
    first = widths[0]
    assert first is not None
    shortest = best(first)
    same_order = all_in(exact, costs, first, shortest.wire)
    least = min(seconds(shortest), seconds(same_order))
    worth_it = (1 - LEAST_GAIN) * seconds(exact)
    if least > worth_it:
        return exact
    tolerance = RANK_TOLERANCE if isinstance(first, int) else TOLERANCE
    worst = min(least * (1 + tolerance), worth_it)
    starts = [(plan, 0) for plan in (same_order, shortest) if seconds(plan) <= worst]
    # Buckets of the shortest are large, and all of one gets wider, or nothing.
    for place, width in enumerate(widths[1:], start=1):
        if not isinstance(width, int):
            break
        plan = best(width)
        if too_slow := seconds(plan) > worst:  # its buckets may do with some in the first width
            plan, place = _in_width(plan, _groups(plan), costs, first), 0
        if seconds(plan) <= worst:
            starts.append((plan, place))
        if too_slow:
            break
    found = []
    for plan, place in starts:
        now = _widths(plan)
        groups = [group for group in _groups(plan) if now[group[0]] is not None]
        for width in widths[place + 1 :]:
            able = _able(groups, plan, costs, width)
            plan = _widened(plan, able, costs, width, seconds, worst)
            now, tried = _widths(plan), set(able)
            groups = [g for g in groups if g not in tried or now[g[0]] == width]
        found.append(plan)
    return min(found, key=lambda plan: _lost(plan, costs))


def narrow_bytes(plan: Plan, costs: StepCosts) -> int:
    """The bytes of the gradients that travel in 16 bits, as they are in full width."""
    narrow = set(plan.narrow)
    return sum(weight.num_bytes for weight in costs.weights if weight.name in narrow)


def _lost(plan: Plan, costs: StepCosts) -> float:
    """What a plan does not send; a measure to compare those of equal speed by."""
    sizes = {weight.name: weight.num_bytes for weight in costs.weights}
    thin = ((1 + 1 / group.rank, name) for group in plan.low_rank for name in group.weights)
    return narrow_bytes(plan, costs) / 2 + sum(share * sizes[name] for share, name in thin)


def _widened(
    plan: Plan,
    groups: Sequence[Group],
    costs: StepCosts,
    width: Width,
    seconds: Callable[[Plan], float],
    worst: float,
) -> Plan:
    """Sends as many of these groups of weights in this width as the time allows."""
    wider = _in_width(plan, groups, costs, width)
    if wider == plan or seconds(wider) <= worst:
        return wider
    if len(groups) == 1:
        return plan
    half = len(groups) // 2  # the first are exchanged beside what is still to be computed
    plan = _widened(plan, groups[:half], costs, width, seconds, worst)
    return _widened(plan, groups[half:], costs, width, seconds, worst)


def _groups(plan: Plan) -> list[Group]:
    return list(dict.fromkeys(exchange.weights for exchange in plan.exchanges))


def _widths(plan: Plan) -> dict[str, Width]:
    """How the gradient of each weight travels, in the order of the exchanges."""
    widths: dict[str, Width] = {name: None for group in _groups(plan) for name in group}
    widths.update(dict.fromkeys(plan.narrow, plan.wire))
    for group in plan.low_rank:
        widths.update(dict.fromkeys(group.weights, group.rank))
    return widths


def _in_width(plan: Plan, groups: Iterable[Group], costs: StepCosts, width: Width) -> Plan:
    """The plan with those of these groups in this width that can travel so."""
    widths = _widths(plan)
    for group in _able(groups, plan, costs, width):
        widths.update(dict.fromkeys(group, width))
    ranks = sorted({rank for rank in widths.values() if isinstance(rank, int)})
    return replace(
        plan,
        narrow=tuple(name for name, own in widths.items() if isinstance(own, str)),
        low_rank=tuple(
            InLowRank(rank, tuple(name for name, own in widths.items() if own == rank))
            for rank in ranks
        ),
    )


def _able(groups: Iterable[Group], plan: Plan, costs: StepCosts, width: Width) -> list[Group]:
    """Those of the groups that can travel in this width: in low rank, whole and at once."""
    if width is None:
        return list(groups)
    weights = {weight.name: weight for weight in costs.weights}
    if not isinstance(width, int):
        return [g for g in groups if all(is_narrowed(weights[name]) for name in g)]
    others = {e.weights for e in plan.exchanges if e.parts > 1}
    carried = set(plan.carried)
    return [
        group
        for group in groups
        if group not in others
        and carried.isdisjoint(group)
        and all(can_be_thin(weights[name], width) for name in group)
    ]
