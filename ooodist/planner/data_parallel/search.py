"""Finds plans: the best one, those to try in training, and those to compare it with."""

from __future__ import annotations

import math
from dataclasses import replace

from ooodist.errors import UserError
from ooodist.planner import wire as wires
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.bound import lower_bound
from ooodist.planner.data_parallel.named import baseline_plan
from ooodist.planner.data_parallel.plan import Plan, Prediction, Wire, WireSetting
from ooodist.planner.data_parallel.planner import Limits, Planner
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.narrowing import LEAST_GAIN, all_narrow, narrow_where_exposed
from ooodist.planner.progress import Progress

__all__ = ["Limits", "comparison", "in_wire", "make_plan", "plans_to_try", "predicted"]

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


def in_wire(limits: Limits, setting: WireSetting) -> Limits:
    """The limits for what a job's ``exchange.wire`` says."""
    if setting == "float32":
        return replace(limits, wire=None, only_exposed=False)
    if setting == "planned":
        return replace(limits, wire=WIRE_OF_PLANNED, only_exposed=True)
    return replace(limits, wire=setting, only_exposed=False)


def plans_to_try(
    costs: StepCosts, network: Network, *, limits: Limits | None = None, seed: int = 0
) -> list[Plan]:
    """Plans for a trial in training: the planned one, and others that may be as fast.

    These are the named ones and, if the planned one carries exchanges, the best that does not; and
    where it sends only some gradients in 16 bits, those of full width.

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
    ``planned`` carries nothing, and ``carried`` is the best plan of all. With ``limits.wire``,
    these have full width, and ``narrow``, the last, is the best plan with gradients in 16 bits.

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
    if limits.wire is not None:
        narrow = _searched(costs, network, limits, seed, progress, exact=best)[0]
        plans["narrow"] = replace(narrow, name="narrow")
    return {
        name: predicted(plan, costs, network, carrying=limits.carrying)
        for name, plan in plans.items()
    }


def predicted(plan: Plan, costs: StepCosts, network: Network, *, carrying: bool = False) -> Plan:
    """The plan with the simulator's prediction.

    Its lower bound is that of plans that carry exchanges if this one does, or with ``carrying``;
    and that of plans that send gradients in 16 bits, if this one does.

    Raises:
        UserError: the plan does not fit the costs.
    """
    simulator = Simulator(costs, network)
    sent = (costs, network) if plan.wire is None else wires.at_least(costs, network, plan.wire)
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
    wire = limits.wire
    if wire is None:
        planner = Planner(costs, network, limits, progress)
        return [*planner.search_both(seed), *planner.best_named()]
    if not limits.only_exposed:
        planner = Planner(*wires.narrowed(costs, network, wire), limits, progress)
        found = [*planner.search_both(seed), *planner.best_named()]
        return [all_narrow(plan, costs, wire) for plan in found]
    if exact is None:
        full = _searched(costs, network, replace(limits, wire=None), seed, progress)
    else:
        full = [exact]
    simulator = Simulator(costs, network)

    def seconds(plan: Plan) -> float:
        memory = limits.memory_bytes
        fits = memory is None or simulator.peak_bytes(plan) <= memory
        return simulator.step_seconds(plan) if fits else math.inf

    steps = limits.steps_per_execution or limits.max_steps_per_execution
    shortest = lower_bound(*wires.at_least(costs, network, wire), steps, carrying=True)
    if shortest > (1 - LEAST_GAIN) * seconds(full[0]):  # nothing can be worth it
        return full
    all_in_16 = replace(limits, only_exposed=False)
    try:
        narrow = _searched(costs, network, all_in_16, seed, progress)[0]
    except UserError:  # there is no memory for residuals
        return full
    return [narrow_where_exposed(full[0], narrow, costs, seconds), *full]


def _seconds(plan: Plan) -> float:
    assert plan.predicted is not None
    return plan.predicted.step_seconds
