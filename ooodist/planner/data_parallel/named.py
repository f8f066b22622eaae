"""Named plans to compare with: baseline, tuned, the default, first-k and strict priority."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ooodist.engines.kinds import traits
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.exchanges import arrange, fused, most_urgent_first, ready_order
from ooodist.planner.data_parallel.orders import baseline_order, first_k_order, movable_layers
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange
from ooodist.planner.data_parallel.simulate import Simulator

PARTITION_BYTES = 4_096_000  # BytePS's default
BUCKET_BYTES = 1 << 20  # size of buckets without a plan
MOST_K = 32  # number of k of reverse first-k that are compared at first
NEARER = 4  # by how much the distance between compared k shrinks in each round
CREDITS: tuple[int | None, ...] = (1, 2, 4, 8, 16, None)
EQUAL_DIGITS = 10  # decimals of seconds: smaller differences are rounding errors
TUNED_BYTES = tuple(1 << exponent for exponent in range(20, 32))  # bucket sizes: usual and larger


def baseline_plan(
    costs: StepCosts,
    network: Network,
    *,
    steps_per_execution: int = 1,
    partition_bytes: int = PARTITION_BYTES,
) -> Plan:
    """Makes the plan of an engine's own wrappers: each gradient is exchanged once it is ready.

    Horovod fuses gradients that are ready at the same time; with others each travels by itself.
    No order is imposed on the backward units. Engines that pick by urgency are given the variables
    in the order of the model, the first layer's as the most urgent, and no limit on what is in
    flight, so they send whatever is ready. With more than one step per execution it is the baseline
    without the barrier between steps.

    Args:
        costs, network: costs of the step.
        steps_per_execution: steps that are traced into one function.
        partition_bytes: size of the pieces into which an engine that picks by urgency splits
            exchanges.
    """
    weights = [weight.name for weight in costs.weights]
    if not network.by_urgency:
        weights = list(ready_order(costs, None))
    plan = Plan(
        name="baseline",
        order=None,
        exchanges=(
            fused(costs, network) if traits(network.engine).fuses else arrange(costs, weights)
        ),
        steps_per_execution=steps_per_execution,
    )
    return _for_network(plan, network, partition_bytes)


def tuned_plan(
    costs: StepCosts,
    network: Network,
    *,
    steps_per_execution: int = 1,
    credits: Sequence[int | None] = CREDITS,
    partitions: Sequence[int] = (PARTITION_BYTES,),
) -> Plan:
    """Makes the baseline with the engine's own settings at their best in simulation.

    For BytePS these are the credit and the size of its pieces; for others the size of the buckets
    that gradients share, and for Horovod also the fusion threshold. Of equals the first is taken.

    Args:
        costs, network: costs of the step.
        steps_per_execution: steps that are traced into one function.
        credits, partitions: allowed settings of an engine that picks by urgency.
    """
    baseline = replace(
        baseline_plan(costs, network, steps_per_execution=steps_per_execution), name="tuned"
    )
    plans = [baseline]
    if network.by_urgency:
        plans = [
            replace(baseline, credit=credit, partition_bytes=size)
            for credit in credits
            for size in partitions
        ]
    else:
        ready = ready_order(costs, None)
        joined = [arrange(costs, ready, bucket_bytes=size) for size in TUNED_BYTES]
        if traits(network.engine).fuses:
            joined += [fused(costs, network, threshold=size) for size in TUNED_BYTES]
        plans += [replace(baseline, exchanges=exchanges) for exchanges in joined]
    return min(plans, key=Simulator(costs, network).step_seconds)


def default_plan(costs: StepCosts, network: Network, *, steps_per_execution: int = 1) -> Plan:
    """Makes the plan that ooodist uses by default: the baseline, with small gradients in buckets.

    Args:
        costs, network: costs of the step.
        steps_per_execution: steps that are traced into one function.
    """
    exchanges = arrange(costs, ready_order(costs, None), bucket_bytes=BUCKET_BYTES)
    plan = Plan("default", None, exchanges, steps_per_execution=steps_per_execution)
    return _for_network(plan, network, PARTITION_BYTES)


def first_k_plan(
    costs: StepCosts,
    network: Network,
    k: int,
    *,
    steps_per_execution: int = 1,
    partition_bytes: int = PARTITION_BYTES,
) -> Plan:
    """Makes the reverse first-k plan; see ``first_k_order`` in planner/data_parallel/orders.py.

    Gradients are exchanged in the order in which they become ready. Raises UserError if k is out
    of range.
    """
    order = first_k_order(costs, k)
    exchanges = arrange(costs, ready_order(costs, order))
    plan = Plan("first_k", order, exchanges, steps_per_execution=steps_per_execution)
    return _for_network(plan, network, partition_bytes)


def best_first_k(
    costs: StepCosts,
    network: Network,
    *,
    steps_per_execution: int = 1,
    memory_bytes: int | None = None,
    partition_bytes: int = PARTITION_BYTES,
    simulator: Simulator | None = None,
) -> Plan:
    """The :func:`first_k_plan` that is fastest in simulation; of equals, the least k.

    It compares every k, or, if there are many, some at equal distances and then those near the
    best, each with its best exchanges: see :func:`bucket_sizes`. With ``memory_bytes``, it compares
    only those that fit, and k = 0, the baseline order, in any case. ``simulator`` is one for these
    costs and this network, if there is one.
    """
    simulator = simulator or Simulator(costs, network)
    sizes = bucket_sizes(costs, network, steps_per_execution, simulator)
    plans: dict[int, Plan] = {}
    seconds: dict[int, float] = {}

    def score(k: int) -> tuple[float, int]:
        if k not in plans:
            plan = first_k_plan(
                costs,
                network,
                k,
                steps_per_execution=steps_per_execution,
                partition_bytes=partition_bytes,
            )
            fits = not k or memory_bytes is None or simulator.peak_bytes(plan) <= memory_bytes
            plans[k] = _with_best_exchanges(plan, costs, simulator, sizes) if fits else plan
            took = simulator.step_seconds(plans[k]) if fits else math.inf
            seconds[k] = round(took, EQUAL_DIGITS)
        return seconds[k], k

    most = len(movable_layers(costs))
    distance = -(-(most + 1) // MOST_K)
    best = min({*range(0, most + 1, distance), most}, key=score)
    while distance > 1:
        nearest, distance = distance, -(-distance // NEARER)
        near = range(max(0, best - nearest), min(most, best + nearest) + 1, distance)
        best = min({best, *near}, key=score)
    return plans[best]


def bucket_sizes(
    costs: StepCosts, network: Network, steps_per_execution: int, simulator: Simulator | None = None
) -> tuple[int, ...]:
    """Chooses sizes: 0 (no buckets), and the best one for baseline order if buckets help.

    An engine that picks by urgency has no buckets of its own. ``simulator`` is one for these costs
    and this network, if there is one.
    """
    if network.by_urgency or network.workers == 1:
        return (0,)
    baseline = first_k_plan(costs, network, 0, steps_per_execution=steps_per_execution)
    ready = ready_order(costs, baseline.order)
    seconds = (simulator or Simulator(costs, network)).step_seconds
    best = min(
        (0, *TUNED_BYTES),
        key=lambda size: seconds(
            replace(baseline, exchanges=arrange(costs, ready, bucket_bytes=size))
        ),
    )
    return (0, best) if best else (0,)


def _with_best_exchanges(
    plan: Plan, costs: StepCosts, simulator: Simulator, sizes: Sequence[int]
) -> Plan:
    """The plan with the best of these bucket sizes, or with Horovod's own fusion."""
    if simulator.network.by_urgency:
        return plan
    ready = ready_order(costs, plan.order)
    exchanges = [arrange(costs, ready, bucket_bytes=size) for size in sizes]
    if traits(plan.engine).fuses:
        exchanges.append(fused(costs, simulator.network, order=plan.order))
    return min((replace(plan, exchanges=each) for each in exchanges), key=simulator.step_seconds)


def priority_plan(
    costs: StepCosts,
    network: Network,
    *,
    chunk_bytes: int = PARTITION_BYTES,
    bucket_bytes: int = 0,
    credit: int | None = 1,
    steps_per_execution: int = 1,
) -> Plan:
    """Makes the strict-priority plan: of the ready chunks, the one needed first goes first.

    The backward units keep baseline order. An engine that picks by urgency does this itself, with
    ``chunk_bytes`` as the size of its pieces. For others, the plan is the sequence that such an
    engine yields in simulation, kept for every step.

    Args:
        costs, network: costs of the step.
        chunk_bytes: larger gradients travel in chunks of about this size.
        bucket_bytes: instead of chunks, use buckets of gradients that become ready one after the
            other, up to this size; 0 for none, and for engines that pick by urgency.
        credit: exchanges in flight: with more, the lane is busier and priority less strict.
        steps_per_execution: steps that are traced into one function.

    Source: Peng et al., "A generic communication scheduler for distributed DNN training
    acceleration" (ByteScheduler), SOSP 2019; Jayarajan et al., "Priority-based parameter
    propagation for distributed DNN training" (P3), MLSys 2019.
    """
    weights = [weight.name for weight in costs.weights]
    order = baseline_order(costs)
    if network.by_urgency:
        exchanges = most_urgent_first(costs, arrange(costs, weights))
    else:
        if bucket_bytes:
            pieces = arrange(costs, ready_order(costs, order), bucket_bytes=bucket_bytes)
        else:
            pieces = arrange(costs, weights, chunk_bytes=chunk_bytes)
        exchanges = priority_sequence(costs, network, order, pieces, credit)
    plan = Plan(
        "priority", order, exchanges, credit=credit, steps_per_execution=steps_per_execution
    )
    return _for_network(plan, network, chunk_bytes)


def best_priority(
    costs: StepCosts,
    network: Network,
    *,
    chunk_bytes: int = PARTITION_BYTES,
    credits: Sequence[int | None] = CREDITS,
    steps_per_execution: int = 1,
    simulator: Simulator | None = None,
) -> Plan:
    """The :func:`priority_plan` whose credit is fastest in simulation; the first of equals.

    It uses chunks, or the buckets that are best for baseline order. ``simulator`` is one for these
    costs and this network, if there is one.
    """
    simulator = simulator or Simulator(costs, network)
    plans = [
        priority_plan(
            costs,
            network,
            chunk_bytes=chunk_bytes,
            bucket_bytes=size,
            credit=credit,
            steps_per_execution=steps_per_execution,
        )
        for size in bucket_sizes(costs, network, steps_per_execution, simulator)
        for credit in credits
    ]
    return min(plans, key=simulator.step_seconds)


def priority_sequence(
    costs: StepCosts,
    network: Network,
    order: Sequence[str] | None,
    exchanges: Sequence[PlannedExchange],
    credit: int | None,
    simulator: Simulator | None = None,
) -> tuple[PlannedExchange, ...]:
    """The order in which exchanges begin if the one needed first always goes first.

    It is taken from a step in the middle of a call, where exchanges of the previous step compete.
    ``simulator`` is one for these costs and this network, if there is one.
    """
    urgent_first = most_urgent_first(costs, exchanges)
    if network.workers == 1:  # nothing is exchanged
        return urgent_first
    urgent = Plan(
        name="priority",
        order=None if order is None else tuple(order),
        exchanges=urgent_first,
        credit=credit,
        by_urgency=True,
    )
    return tuple((simulator or Simulator(costs, network)).entry_order(urgent))


def _for_network(plan: Plan, network: Network, partition_bytes: int) -> Plan:
    return replace(
        plan,
        by_urgency=network.by_urgency,
        partition_bytes=partition_bytes if network.by_urgency else None,
        engine=network.engine,
        workers=network.workers,
    )
