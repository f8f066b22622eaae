"""Named plans to compare with: baseline, tuned, the default, first-k and strict priority."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

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


class NamedPlans:
    """The named plans of one model and network whose settings are found by simulation.

    Args:
        simulator: a simulator of the step's costs and network.
        steps_per_execution: steps that are traced into one function.
        partition_bytes: size of the pieces into which an engine that picks by urgency splits
            exchanges; with other engines, large gradients travel in chunks of about this size in
            the order of priority.
    """

    def __init__(
        self,
        simulator: Simulator,
        steps_per_execution: int = 1,
        partition_bytes: int = PARTITION_BYTES,
    ) -> None:
        self._simulator = simulator
        self._costs, self._network = simulator.costs, simulator.network
        self._steps_per_execution = steps_per_execution
        self._partition_bytes = partition_bytes

    def baseline(self) -> Plan:
        """The :func:`baseline_plan`."""
        return baseline_plan(
            self._costs,
            self._network,
            steps_per_execution=self._steps_per_execution,
            partition_bytes=self._partition_bytes,
        )

    def tuned(
        self,
        credits: Sequence[int | None] = CREDITS,
        partitions: Sequence[int] = (PARTITION_BYTES,),
    ) -> Plan:
        """The baseline with the engine's own settings at their best.

        For BytePS these are the credit and the size of its pieces; for others the size of the
        buckets that gradients share, and for Horovod also the fusion threshold. Of equals the first
        is taken.

        Args:
            credits, partitions: allowed settings of an engine that picks by urgency.
        """
        costs, network = self._costs, self._network
        baseline = replace(self.baseline(), name="tuned")
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
        return min(plans, key=self._simulator.step_seconds)

    def best_first_k(self, memory_bytes: int | None = None) -> Plan:
        """The :func:`first_k_plan` that is fastest; of equals, the least k.

        It compares every k, or, if there are many, some at equal distances and then those near the
        best, each with its best exchanges: see ``bucket_sizes``. With ``memory_bytes``, it compares
        only those that fit, and k = 0, the baseline order, in any case.
        """
        simulator = self._simulator
        plans: dict[int, Plan] = {}
        seconds: dict[int, float] = {}

        def score(k: int) -> tuple[float, int]:
            if k not in plans:
                plan = self._first_k(k)
                fits = not k or memory_bytes is None or simulator.peak_bytes(plan) <= memory_bytes
                plans[k] = self._with_best_exchanges(plan) if fits else plan
                took = simulator.step_seconds(plans[k]) if fits else math.inf
                seconds[k] = round(took, EQUAL_DIGITS)
            return seconds[k], k

        most = len(movable_layers(self._costs))
        distance = -(-(most + 1) // MOST_K)
        best = min({*range(0, most + 1, distance), most}, key=score)
        while distance > 1:
            nearest, distance = distance, -(-distance // NEARER)
            near = range(max(0, best - nearest), min(most, best + nearest) + 1, distance)
            best = min({best, *near}, key=score)
        return plans[best]

    def priority(self, credit: int | None = 1, bucket_bytes: int = 0) -> Plan:
        """The strict-priority plan: of the ready chunks, the one needed first goes first.

        The backward units keep baseline order. An engine that picks by urgency does this itself.
        For others, the plan is the sequence that such an engine yields in simulation, kept for
        every step.

        Args:
            credit: exchanges in flight: with more, the lane is busier and priority less strict.
            bucket_bytes: instead of chunks, use buckets of gradients that become ready one after
                the other, up to this size; 0 for none, and for engines that pick by urgency.

        Source: Peng et al., "A generic communication scheduler for distributed DNN training
        acceleration" (ByteScheduler), SOSP 2019; Jayarajan et al., "Priority-based parameter
        propagation for distributed DNN training" (P3), MLSys 2019.
        """
        costs, network = self._costs, self._network
        weights = [weight.name for weight in costs.weights]
        order = baseline_order(costs)
        if network.by_urgency:
            exchanges = most_urgent_first(costs, arrange(costs, weights))
        else:
            if bucket_bytes:
                pieces = arrange(costs, ready_order(costs, order), bucket_bytes=bucket_bytes)
            else:
                pieces = arrange(costs, weights, chunk_bytes=self._partition_bytes)
            exchanges = priority_sequence(self._simulator, order, pieces, credit)
        plan = Plan(
            name="priority",
            order=order,
            exchanges=exchanges,
            credit=credit,
            steps_per_execution=self._steps_per_execution,
        )
        return _for_network(plan, network, self._partition_bytes)

    def best_priority(self, credits: Sequence[int | None] = CREDITS) -> Plan:
        """The :meth:`priority` plan whose credit is fastest; the first of equals.

        It uses chunks, or the buckets that are best for baseline order.
        """
        plans = [self.priority(credit, size) for size in self._bucket_sizes for credit in credits]
        return min(plans, key=self._simulator.step_seconds)

    def _first_k(self, k: int) -> Plan:
        return first_k_plan(
            self._costs,
            self._network,
            k,
            steps_per_execution=self._steps_per_execution,
            partition_bytes=self._partition_bytes,
        )

    @cached_property
    def _bucket_sizes(self) -> tuple[int, ...]:
        """0 (no buckets), and the best size for baseline order if buckets help.

        An engine that picks by urgency has no buckets of its own.
        """
        if self._network.by_urgency or self._network.workers == 1:
            return (0,)
        baseline = self._first_k(0)
        ready = ready_order(self._costs, baseline.order)

        def seconds(size: int) -> float:
            exchanges = arrange(self._costs, ready, bucket_bytes=size)
            return self._simulator.step_seconds(replace(baseline, exchanges=exchanges))

        best = min((0, *TUNED_BYTES), key=seconds)
        return (0, best) if best else (0,)

    def _with_best_exchanges(self, plan: Plan) -> Plan:
        """The plan with the best of the bucket sizes, or with Horovod's own fusion."""
        costs, network = self._costs, self._network
        if network.by_urgency:
            return plan
        ready = ready_order(costs, plan.order)
        exchanges = [arrange(costs, ready, bucket_bytes=size) for size in self._bucket_sizes]
        if traits(plan.engine).fuses:
            exchanges.append(fused(costs, network, order=plan.order))
        plans = (replace(plan, exchanges=each) for each in exchanges)
        return min(plans, key=self._simulator.step_seconds)


def priority_sequence(
    simulator: Simulator,
    order: Sequence[str] | None,
    exchanges: Sequence[PlannedExchange],
    credit: int | None,
) -> tuple[PlannedExchange, ...]:
    """The order in which exchanges begin if the one needed first always goes first.

    It is taken from a step in the middle of a call, where exchanges of the previous step compete.
    """
    urgent_first = most_urgent_first(simulator.costs, exchanges)
    if simulator.network.workers == 1:  # nothing is exchanged
        return urgent_first
    urgent = Plan(
        name="priority",
        order=None if order is None else tuple(order),
        exchanges=urgent_first,
        credit=credit,
        by_urgency=True,
    )
    return tuple(simulator.entry_order(urgent))


def _for_network(plan: Plan, network: Network, partition_bytes: int) -> Plan:
    return replace(
        plan,
        by_urgency=network.by_urgency,
        partition_bytes=partition_bytes if network.by_urgency else None,
        engine=network.engine,
        workers=network.workers,
    )
