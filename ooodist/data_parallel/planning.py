"""Plans for a model and a batch: all ranks profile, rank 0 plans, all carry out its plan."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ooodist.engines.base import Engine
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel import plan as plans
from ooodist.planner.data_parallel.named import NamedPlans
from ooodist.planner.data_parallel.plan import Plan, PlanWithCosts, RankSetting, WireSetting
from ooodist.planner.data_parallel.search import (
    Limits,
    as_sent,
    comparison,
    costs_as_sent,
    in_wire,
    make_plan,
    predicted,
)
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.low_rank import thin_bytes
from ooodist.planner.narrowing import narrow_bytes
from ooodist.planner.rows import with_rows
from ooodist.profiler.folder import Profile
from ooodist.settings.sections import PlanningConfig
from ooodist.step.all_ranks.objects import text_of_rank
from ooodist.step.sending.rows import RowGradients
from ooodist.util import yaml_dataclass
from ooodist.util.quantity import counted

logger = logging.getLogger("ooodist")


def as_exchanged(profile: Profile, rows: RowGradients | None) -> Profile:
    """The profile with the bytes of rows, if gradients travel as such now."""
    if rows is None or not rows.may_travel:
        return profile
    return replace(profile, costs=with_rows(profile.costs, profile.network))


def planned_for(
    order: str, costs: StepCosts, network: Network, limits: Limits, model: str, engine: Engine
) -> PlanWithCosts:
    """The plan that rank 0 finds for these costs. All ranks call it.

    Args:
        order: one of FROM_COSTS.
        costs, network: what the step costs here.
        limits: restrict the search.
        model: digest of the units that ``costs`` describe.
        engine: the engine in use.

    Raises:
        UserError: no plan fits into the memory limit; on all ranks.
    """
    plan = shared_plan(lambda: replace(_plan(order, costs, network, limits), model=model), engine)
    log_wire(plan, costs)
    return PlanWithCosts(plan, costs, network)


def limits_of(
    engine: Engine,
    settings: PlanningConfig,
    steps_per_execution: int | None = None,
    total_steps: int | None = None,
    *,
    carrying: bool = False,
    wire: WireSetting = "float32",
    rank: RankSetting = None,
) -> Limits:
    """The limits of the search for plans with a running engine.

    Args:
        engine: the engine in use.
        settings: the user's limits.
        steps_per_execution: what the plan must have; None lets the planner choose.
        total_steps: steps of the training, against which the time to trace more steps at once is
            weighed; None if unknown.
        carrying: whether a call may leave exchanges to the next one.
        wire, rank: ``wire`` and ``low_rank`` of :func:`ooodist.distribute`.
    """
    limits = Limits(
        memory_bytes=settings.memory_bytes,
        max_steps_per_execution=settings.max_steps_per_execution,
        steps_per_execution=steps_per_execution,
        total_steps=total_steps,
        carrying=carrying,
    )
    limits = in_wire(limits, wire, rank)
    if engine.partition_bytes is not None:  # fixed since the engine started
        partitions, credits = (engine.partition_bytes,), (engine.pieces_in_flight,)
        return replace(limits, partitions=partitions, credits=credits)
    return replace(limits, credits=engine.credits)


def log_wire(plan: Plan, costs: StepCosts) -> None:
    """Logs how much a plan sends in 16 bits and in low rank, if it may."""
    weight_of = {weight.name: weight for weight in costs.weights}
    for group in plan.low_rank:
        weights = [weight_of[name] for name in group.weights]
        logger.info(
            "plan %s: the gradients of %s travel in rank %d, %.2f MB in place of %.1f: %s",
            plan.name,
            counted(len(weights), "weight"),
            group.rank,
            sum(sum(thin_bytes(weight, group.rank)) for weight in weights) / 1e6,
            sum(weight.num_bytes for weight in weights) / 1e6,
            ", ".join(group.weights),
        )
    if plan.wire is not None and (plan.narrow or not plan.low_rank):
        logger.info(
            "plan %s: %d of %d exchanges, with %.1f of %.1f MB of gradients, travel in %s",
            plan.name,
            len(plans.narrow_exchanges(plan)),
            len(plan.exchanges),
            narrow_bytes(plan, costs) / 1e6,
            sum(weight.num_bytes for weight in costs.weights) / 1e6,
            plan.wire,
        )


def _plan(order: str, costs: StepCosts, network: Network, limits: Limits) -> Plan:
    if order == "planned":
        return make_plan(costs, network, limits=limits)
    sent = costs_as_sent(costs, network, limits)
    if limits.steps_per_execution is None or order == "priority":
        plan = comparison(*sent, limits=replace(limits, wire=None, ranks=()))[order]
    else:
        plan = NamedPlans(Simulator(*sent), limits.steps_per_execution).best_first_k()
    return predicted(as_sent(plan, costs, limits), costs, network)


def shared_plan(make: Callable[[], Plan], engine: Engine) -> Plan:
    """The plan that ``make`` makes on rank 0, on all ranks, which call it.

    Raises:
        UserError: on all ranks, if it cannot be made.
    """
    text = text_of_rank(engine, lambda: yaml_dataclass.dump(make()))
    plan = plans.from_yaml(text, "of rank 0")
    engine.check_equal("the plan", plan.digest())
    if plan.predicted is not None:
        logger.info(
            "plan %s: %s, %s per execution; predicted %.1f ms a step "
            "(baseline %.1f ms, no plan below %.1f ms)",
            plan.name,
            counted(len(plan.exchanges), "exchange"),
            counted(plan.steps_per_execution, "step"),
            plan.predicted.step_seconds * 1e3,
            plan.predicted.baseline_seconds * 1e3,
            plan.predicted.lower_bound_seconds * 1e3,
        )
    return plan
