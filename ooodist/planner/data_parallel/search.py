"""Finds plans: the best one, those to try in training, and those to compare it with."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from ooodist.errors import UserError
from ooodist.planner import low_rank
from ooodist.planner import wire as wires
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.bound import lower_bound
from ooodist.planner.data_parallel.named import baseline_plan
from ooodist.planner.data_parallel.plan import Plan, Prediction, RankSetting, Wire, WireSetting
from ooodist.planner.data_parallel.planner import Limits, Planner
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.low_rank import RANKS
from ooodist.planner.narrowing import LEAST_GAIN, Width, all_in, wide_where_hidden
from ooodist.planner.progress import Progress

__all__ = [
    "Limits",
    "as_sent",
    "comparison",
    "costs_as_sent",
    "costs_of_bound",
    "in_wire",
    "make_plan",
    "plans_to_try",
    "predicted",
]

WIRE_OF_PLANNED: Wire = "float16"  # all engines can sum it, and it rounds less than bfloat16
TRIED = 0.25  # how much slower, relatively, a named plan may be in simulation to be tried
MOST_TRIED = 3  # each must be traced, which takes seconds


def make_plan(
    costs: StepCosts,
    network: Network,
    *,
    limits: Limits | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Plan:
    """The best plan found: in simulation never slower than the named ones.

    Named plans count as far as they are within the limits, with their best k and credit, and with
    the steps per execution that are best for them, or those of this plan. Of nearly equal plans the
    simplest is taken.

    Args:
        costs, network: costs of the step.
        limits: limits of the search.
        seed: seed of the random search.
        progress: called with the state of the search.

    Returns:
        a plan with its prediction; its ``model`` is left for the caller to set.

    Raises:
        UserError: no plan fits into ``limits.memory_bytes``.
    """
    limits = limits or Limits()
    planned = _searched(costs, network, limits, seed, progress)[0]
    return predicted(planned, costs, network, carrying=limits.carrying)


def in_wire(limits: Limits, setting: WireSetting, rank: RankSetting = None) -> Limits:
    """The limits for what a job's ``exchange.wire`` and ``exchange.low_rank`` say."""
    wire = WIRE_OF_PLANNED if setting == "planned" else setting
    return replace(
        limits,
        wire=None if wire == "float32" else wire,
        ranks=() if rank is None else RANKS if rank == "auto" else (rank,),
        only_exposed=setting == "planned" or rank == "auto",
    )


def plans_to_try(
    costs: StepCosts, network: Network, *, limits: Limits | None = None, seed: int = 0
) -> list[Plan]:
    """Plans for a trial in training: the planned one, and others that may be as fast.

    These are the named ones and, if the planned one carries exchanges, the best that does not; and
    where it sends only some gradients in fewer bytes, those of full width.

    Where workers share the cores of a machine, the simulator errs by as much as ``TRIED``, so plans
    that differ by less are equal until they are tried. There are at most ``MOST_TRIED``, the
    fastest in simulation first.

    Raises:
        UserError: no plan fits into ``limits.memory_bytes``.
    """
    limits = limits or Limits()
    found = _searched(costs, network, limits, seed)
    plans = sorted(
        (predicted(plan, costs, network, carrying=limits.carrying) for plan in found), key=_seconds
    )
    distinct: dict[Plan, Plan] = {}
    for plan in plans:
        distinct.setdefault(replace(plan, name="", predicted=None), plan)
    worst = (1 + TRIED) * _seconds(plans[0])
    return [plan for plan in distinct.values() if _seconds(plan) <= worst][:MOST_TRIED]


def comparison(
    costs: StepCosts,
    network: Network,
    *,
    limits: Limits | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Plan]:
    """The plans to compare, by name, each with its prediction.

    ``baseline`` is the engine without changes, ``tuned`` with its own settings at their best; these
    and ``first_k`` (with the best k) have one step per execution. ``barrier_removed``, otherwise
    the baseline, and ``priority`` (with the best credit) have as many as ``planned``. So the gain
    of the order and the gain of the removed barrier can be told apart. With ``limits.carrying``,
    ``planned`` carries nothing, and ``carried`` is the best plan of all. With ``limits.wire`` or
    ``limits.ranks``, these have full width, and ``narrow``, the last, is the best plan with
    gradients in 16 bits or in low rank.

    Raises:
        UserError: no plan fits into ``limits.memory_bytes``.
    """
    limits = limits or Limits()
    planner = Planner(costs, network, limits, progress)
    best, planned = planner.search_both(seed)
    alone, together = planner.named(1), planner.named(planned.steps_per_execution)
    plans = {
        "baseline": alone["baseline"],
        "tuned": alone["tuned"],
        "barrier_removed": replace(together["baseline"], name="barrier_removed"),
        "first_k": alone["first_k"],
        "priority": together["priority"],
        "planned": planned,
    }
    if limits.carrying:
        plans["carried"] = replace(best, name="carried")
    if limits.wire is not None or limits.ranks:
        narrow = _searched(costs, network, limits, seed, progress, exact=best)[0]
        plans["narrow"] = replace(narrow, name="narrow")
    return {
        name: predicted(plan, costs, network, carrying=limits.carrying)
        for name, plan in plans.items()
    }


def predicted(plan: Plan, costs: StepCosts, network: Network, *, carrying: bool = False) -> Plan:
    """The plan with the simulator's prediction.

    Its lower bound is that of plans that carry exchanges if this one does, or with ``carrying``;
    and that of plans that send gradients in 16 bits or in low rank, if this one does.

    Raises:
        UserError: the plan does not fit the costs.
    """
    simulator = Simulator(costs, network)
    sent = costs_of_bound(costs, network, [plan])
    prediction = Prediction(
        step_seconds=simulator.step_seconds(plan),
        lower_bound_seconds=lower_bound(
            *sent, plan.steps_per_execution, carrying=carrying or bool(plan.carried)
        ),
        baseline_seconds=simulator.step_seconds(baseline_plan(costs, network)),
        peak_bytes=simulator.peak_bytes(plan),
    )
    return replace(plan, predicted=prediction)


def _searched(
    costs: StepCosts,
    network: Network,
    limits: Limits,
    seed: int,
    progress: Progress | None = None,
    *,
    exact: Plan | None = None,
) -> list[Plan]:
    """The best plan for the wire of the limits, and then others that may be tried.

    ``exact`` is the best plan of full width, if it is known.
    """
    if not limits.only_exposed:
        # What is carried is dense.
        own = replace(limits, carrying=limits.carrying and not limits.ranks)
        planner = Planner(*costs_as_sent(costs, network, limits), own, progress)
        found = [*planner.search_both(seed), *planner.best_named()]
        return [as_sent(plan, costs, limits) for plan in found]
    if exact is None:
        in_full = replace(limits, wire=None, ranks=(), only_exposed=False)
        full = _searched(costs, network, in_full, seed, progress)
    else:
        full = [exact]
    simulator = Simulator(costs, network)

    def seconds(plan: Plan) -> float:
        memory = limits.memory_bytes
        fits = memory is None or simulator.peak_bytes(plan) <= memory
        return simulator.step_seconds(plan) if fits else math.inf

    steps = limits.steps_per_execution or limits.max_steps_per_execution
    least = _at_least(costs, network, limits.wire, limits.ranks)
    if lower_bound(*least, steps, carrying=True) > (1 - LEAST_GAIN) * seconds(full[0]):
        return full  # nothing can be worth it

    def best(width: Wire | int) -> Plan:
        ranks = (width,) if isinstance(width, int) else ()
        alike = replace(limits, ranks=ranks, only_exposed=False)
        return _searched(costs, network, alike, seed, progress)[0]

    widths: list[Width] = [*limits.ranks, *([limits.wire] if limits.wire else []), None]
    try:
        return [wide_where_hidden(full[0], best, widths, costs, seconds), *full]
    except UserError:  # there is no memory for residuals
        return full


def costs_as_sent(costs: StepCosts, network: Network, limits: Limits) -> tuple[StepCosts, Network]:
    """Costs in which gradients have the bytes that all get by these limits; see as_sent."""
    if limits.ranks:
        costs = low_rank.thinned(costs, limits.ranks[0])
    if limits.wire is not None:
        return wires.narrowed(costs, network, limits.wire)
    return costs, network


def as_sent(plan: Plan, costs: StepCosts, limits: Limits) -> Plan:
    """The plan, found for :func:`costs_as_sent`, saying how gradients travel."""
    width = limits.ranks[0] if limits.ranks else limits.wire
    return plan if width is None else all_in(plan, costs, width, limits.wire)


def costs_of_bound(
    costs: StepCosts, network: Network, plans: Collection[Plan]
) -> tuple[StepCosts, Network]:
    """Costs for a lower bound over all plans that may send gradients as these do."""
    wires_of = {plan.wire for plan in plans if plan.wire is not None}
    ranks = [group.rank for plan in plans for group in plan.low_rank]
    return _at_least(costs, network, next(iter(wires_of), None), ranks)


def _at_least(
    costs: StepCosts, network: Network, wire: Wire | None, ranks: Sequence[int]
) -> tuple[StepCosts, Network]:
    """Costs for a lower bound over all plans that may send gradients so."""
    if wire is not None:
        costs, network = wires.at_least(costs, network, wire)
    return low_rank.at_least(costs, min(ranks)) if ranks else costs, network


def _seconds(plan: Plan) -> float:
    assert plan.predicted is not None
    return plan.predicted.step_seconds
