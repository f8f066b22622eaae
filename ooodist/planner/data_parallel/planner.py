"""Searches for the plan whose steps take the least time.

It begins with the named plans (baseline, tuned, first-k, strict priority), improves settings one at
a time (candidates.py), then changes the best plan at random (local_search.py), and keeps the best
of all. Each plan counts with the number of steps per execution that suits it best. Where exchanges
may be carried, it goes on from there, and is never worse than without.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from ooodist.errors import UserError
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.candidates import Family, Settings
from ooodist.planner.data_parallel.local_search import LocalSearch
from ooodist.planner.data_parallel.named import (
    CREDITS,
    PARTITION_BYTES,
    NamedPlans,
    baseline_plan,
)
from ooodist.planner.data_parallel.orders import num_deferred
from ooodist.planner.data_parallel.plan import Plan, Wire
from ooodist.planner.progress import Progress, WatchedSimulator
from ooodist.util.yaml_dataclass import Range

MOST_SEARCHED_STEPS = 4  # longer calls are searched with these if all their steps are simulated
FEWER_STEPS_TOLERANCE = 0.01  # how much slower, relatively, fewer steps per execution may be
MOST_WORK = 22_000_000  # units and weights over all plans of the random search
MANY = 2_000  # units and weights, some 400 layers: above this, MOST_WORK is reduced
LESS_WORK, LESS_BY_URGENCY = 0.75, 1.65  # exponents; BytePS's pieces are simulated one by one
OTHER_PLANS = 350  # approximate number of other simulated plans, per number of steps tried
NEAR = 0.03  # how much slower, relatively, calls of any length may start and still be searched
SIMPLER_TOLERANCE = 0.002  # how much slower, relatively, a simpler plan may be
ROUNDING = 1e-9  # a smaller relative difference of scores is a rounding error
LOAD_PENALTY = 1e-5  # relative increase of the score per unit of load: see Planner._load


@dataclass(frozen=True)
class Limits:
    """Limits of the search.

    Attributes:
        memory_bytes: memory of a worker; None for no limit.
        max_steps_per_execution: the most steps traced into one function; 1, 2, 4, ... are tried.
        steps_per_execution: the only number that is tried; None: up to the maximum.
        total_steps: steps of the training, in which tracing longer calls must pay off. None: so
            many that tracing does not count; the shortest call within 1 % of the best is taken.
        credits: allowed credits; None stands for any number of exchanges in flight. A single one
            if the engine's is fixed already, or if it allows no other. Baseline and tuned always
            have any number, unless the engine picks by urgency: that is what the engine does.
        partitions: allowed sizes in bytes of the pieces into which an engine that picks by urgency
            splits exchanges. A single one if the engine's is fixed already.
        evaluations: plans of the random search, fewer for more than about 200 layers; with the
            seed, they determine its result. ``carrying`` takes half as many more.
        carrying: whether a call may leave exchanges to the next one (PlannedExchange.carried).
        wire: the 16-bit dtype in which gradients travel (Plan.wire); None: in their own.
        ranks: in which gradients may travel in low rank, ascending; empty: they do not.
        only_exposed: whether only those travel in ``wire`` or in low rank whose time would be
            waited for; if not, all that can have the first of the ranks.
    """

    memory_bytes: Annotated[int, Range(0)] | None = None
    max_steps_per_execution: Annotated[int, Range(1)] = 8
    steps_per_execution: Annotated[int, Range(1)] | None = None
    total_steps: Annotated[int, Range(1)] | None = None
    credits: tuple[int | None, ...] = CREDITS
    partitions: tuple[int, ...] = (PARTITION_BYTES, 1 << 20, 1 << 21, 1 << 23, 1 << 24)
    evaluations: Annotated[int, Range(0)] = 20000
    carrying: bool = False
    wire: Wire | None = None
    ranks: tuple[int, ...] = ()
    only_exposed: bool = False


class Planner:
    """Searches for one model and network, for plans in which all gradients have their own width.

    (See search.py for others.)

    Attributes:
        evaluations: number of plans of the random search.
    """

    def __init__(
        self,
        costs: StepCosts,
        network: Network,
        limits: Limits,
        progress: Progress | None = None,
    ) -> None:
        self._costs = costs
        self._network = network
        self._limits = limits
        self._bytes = {weight.name: weight.num_bytes for weight in costs.weights}
        most = min(
            limits.max_steps_per_execution, limits.total_steps or limits.max_steps_per_execution
        )
        self._steps = tuple(1 << i for i in range(most.bit_length()))  # 1, 2, 4, ... up to most
        if limits.steps_per_execution is not None:
            self._steps = (limits.steps_per_execution,)
        size = max(1, len(costs.forward + costs.backward) + len(costs.weights))
        self._is_large = size > MANY
        work = MOST_WORK
        if self._is_large:
            falls = LESS_BY_URGENCY if network.by_urgency else LESS_WORK
            work = int(work * (MANY / size) ** falls)
        self.evaluations = min(limits.evaluations, work // size)
        expected = self.evaluations + OTHER_PLANS * len(self._steps)
        if limits.carrying:
            expected += expected // 2
        self._simulator = WatchedSimulator(costs, network, expected, progress)
        self._named: dict[int, dict[str, Plan]] = {}

    def named(self, steps_per_execution: int) -> dict[str, Plan]:
        """Baseline, tuned, the best first-k and the best priority, within the limits."""
        if steps_per_execution not in self._named:  # finding them takes many simulations
            self._named[steps_per_execution] = self._find_named(steps_per_execution)
        return self._named[steps_per_execution]

    def _find_named(self, steps_per_execution: int) -> dict[str, Plan]:
        limits = self._limits
        usual = PARTITION_BYTES in limits.partitions
        partition_bytes = PARTITION_BYTES if usual else limits.partitions[0]
        named = NamedPlans(self._simulator, steps_per_execution, partition_bytes)
        plans = (
            named.baseline(),
            named.tuned(limits.credits, limits.partitions),
            named.best_first_k(limits.memory_bytes),
            named.best_priority(limits.credits),
        )
        other = limits.credits[-1]
        # These engines start all that is ready; the credit is a setting of the others only.
        as_it_comes = () if self._network.by_urgency else ("baseline", "tuned")
        return {
            plan.name: plan
            if plan.name in as_it_comes or plan.credit in limits.credits
            else replace(plan, credit=other)
            for plan in plans
        }

    def best_named(self) -> list[Plan]:
        """Each named plan with the steps per execution that are best for it."""
        return [
            self.named(self._fewest_steps(scores))[name]
            for name, scores in self._named_scores().items()
            if min(scores.values()) < float("inf")  # it fits into memory
        ]

    def _named_scores(self) -> dict[str, dict[int, float]]:
        """Each named plan's scores, by steps per execution."""
        return {
            name: {steps: self._score(self.named(steps)[name]) for steps in self._steps}
            for name in self.named(self._steps[0])
        }

    def search_both(self, seed: int) -> tuple[Plan, Plan]:
        """The best plan, and the best of those that carry nothing, which may be the same.

        The first is called ``carried`` if it carries something. Raises UserError if none fits into
        memory.
        """
        watched = self._simulator
        watched.phase = "plans with a name"
        # With its share of the tracing, as the best is beside which it is shown.
        watched.baseline_seconds = self._score(baseline_plan(self._costs, self._network))
        pool = [plan for steps in self._steps for plan in self.named(steps).values()]
        self._check_memory(pool)
        settings: list[list[Settings]] = []
        if self._network.workers > 1 and self._costs.weights:
            watched.phase = "one setting after the other"
            family = Family(watched, self._limits.credits, self._limits.partitions)
            launches = list(dict.fromkeys((self._steps[:1], self._steps)))
            for steps in launches[-1:] if self._is_large else launches:
                score = self._lowest(steps)
                settings.append([family.improve(each, steps[0], score) for each in family.starts()])
                pool += [family.plan(found, steps[0]) for found in settings[-1]]
            watched.phase = "random changes"
            longest = self.named(self._steps[-1]).values()
            starts = [*longest, *pool[-len(settings[-1]) :]]
            pool += self._walk(starts, pool, random.Random(seed))
        planned = replace(self._pick(pool), name="planned")
        if not self._limits.carrying or not settings:
            return planned, planned
        pool += self._carrying([*pool, planned], settings, seed)
        best = self._pick(pool, self._score(planned))
        if not best.carried:
            planned = replace(best, name="planned")
            return planned, planned
        return replace(best, name="carried"), planned

    def _carrying(
        self, pool: list[Plan], settings: Sequence[Sequence[Settings]], seed: int
    ) -> list[Plan]:
        """Plans that carry exchanges, from the best settings and plans that carry none.

        What is carried makes calls of one step about as fast as longer ones, but by other orders.
        Both are searched, unless one is much slower at first.
        """
        limits, watched = self._limits, self._simulator
        watched.phase = "carried exchanges, one setting after the other"
        family = Family(watched, limits.credits, limits.partitions, carrying=True)
        launches = [steps for steps in (self._steps[:1], self._steps[1:]) if steps]
        simple = [family.plan(each, self._steps[0]) for each in family.all_in_halves()]
        for steps, settled in zip(launches, settings, strict=False):
            score = self._lowest(steps)
            simple += [family.plan(family.improve(s, steps[0], score), steps[0]) for s in settled]
        watched.phase = "carried exchanges, random changes"
        starts = {steps: self._starts([*pool, *simple], steps) for steps in launches}
        lowest = {steps: self._lowest(steps)(starts[steps][0]) for steps in launches}
        most = min(lowest.values()) * (1 + (0.0 if self._is_large else NEAR))
        launches = [steps for steps in launches if lowest[steps] <= most]
        changes = self.evaluations // 12
        follow = not self._network.by_urgency
        found: list[Plan] = []
        for steps in launches:
            score = self._lowest(steps)
            rng = random.Random(seed)  # what is found does not depend on what else may be
            local = LocalSearch(self._costs, limits.credits, score, rng, carrying=True)
            best = min((local.improve(p, changes, follow=follow) for p in starts[steps]), key=score)
            for way, times in ((not follow, 1), (follow, 3)):
                best = local.improve(best, times * changes, follow=way)
            found += [best, local.simplify(best, score(best) * (1 + SIMPLER_TOLERANCE / 2))]
        return [*simple, *found]

    def _walk(self, starts: Iterable[Plan], pool: Iterable[Plan], rng: random.Random) -> list[Plan]:
        """Changes the best of the starts at random; returns the result, also in a simpler form.

        Each plan counts with the number of steps that suits it best. In the end, when it is known
        how many steps are taken, plans count with that number.
        """
        score = self._lowest(self._steps)
        local = LocalSearch(self._costs, self._limits.credits, score, rng)
        follow = not self._network.by_urgency  # what suits the engine
        starts = self._starts(starts, self._steps)
        ways = [(plan, way) for way in (follow, not follow) for plan in starts]
        if self.evaluations < self._limits.evaluations:  # with so many layers, each walk is short
            ways = ways[:1]
        found = [local.improve(plan, self.evaluations // 8, follow=way) for plan, way in ways]
        rest = self.evaluations - len(found) * (self.evaluations // 8)
        best = min(found, key=score)
        for _ in range(2):
            best = local.improve(best, rest * 5 // 12, follow=follow)
        found = [*pool, best]
        steps = (self._pick(found).steps_per_execution,)
        score = self._lowest(steps)
        local = LocalSearch(self._costs, self._limits.credits, score, rng)
        last = local.improve(self._starts(found, steps)[0], rest // 6, follow=not follow)
        self._simulator.phase = "making the best simpler"
        return [best, last, local.simplify(last, score(last) * (1 + SIMPLER_TOLERANCE / 2))]

    def _starts(self, pool: Iterable[Plan], steps: Sequence[int]) -> list[Plan]:
        """The two best plans of the pool for calls with the best of these numbers of steps."""
        plans = dict.fromkeys(replace(_with_steps(plan, steps[0]), name="planned") for plan in pool)
        return sorted(plans, key=self._lowest(steps))[:2]

    def _score(self, plan: Plan) -> float:
        """Seconds per step with its share of the tracing; infinite if out of memory."""
        steps = plan.steps_per_execution
        return self._scores(plan, (steps,))[steps]

    def _scores(self, plan: Plan, steps: Sequence[int]) -> dict[int, float]:
        """The scores of a plan by the number of steps of a call, of which these are given."""
        scores = dict.fromkeys(steps, float("inf"))
        memory = self._limits.memory_bytes
        if memory is not None:
            peak_bytes = self._simulator.peak_bytes
            steps = [number for number in steps if peak_bytes(_with_steps(plan, number)) <= memory]
        if steps:
            scores.update(self._simulator.seconds_by_steps(plan, steps))
        if self._limits.total_steps is not None:
            tracing = self._costs.trace_seconds / self._limits.total_steps
            scores = {number: score + number * tracing for number, score in scores.items()}
        watched = self._simulator
        watched.best_seconds = min(watched.best_seconds, *scores.values())
        return scores

    def _lowest(self, steps: Sequence[int]) -> Callable[[Plan], float]:
        """Scores a plan for calls with the best of these numbers of steps.

        There is a small penalty for load, which the search would ignore.
        """
        if not self._simulator.steps_are_alike:
            steps = sorted({min(number, MOST_SEARCHED_STEPS) for number in steps})

        def score(plan: Plan) -> float:
            lowest = min(self._scores(plan, steps).values())
            return lowest * (1 + LOAD_PENALTY * self._load(plan))

        return score

    def _load(self, plan: Plan) -> float:
        """What the model underrates: exchanges, and MiB copied for buckets and chunks."""
        copied = sum(
            self._bytes[weight] / exchange.parts
            for exchange in plan.exchanges
            if exchange.parts > 1 or len(exchange.weights) > 1
            for weight in exchange.weights
        )
        return len(plan.exchanges) + copied / (1 << 20)

    def _pick(self, pool: Iterable[Plan], most: float = float("inf")) -> Plan:
        """The simplest of the best plans of the pool, with few steps per execution.

        Their number is no larger than needed. The plan is never slower than a named plan with as
        many steps, or with those that are best for it. Its score is at most ``most``, which one of
        the pool must have.
        """
        distinct = dict.fromkeys(_with_steps(plan, 1) for plan in pool)
        scores = {plan: self._scores(plan, self._steps) for plan in distinct}
        lowest = {steps: min(own[steps] for own in scores.values()) for steps in self._steps}
        by_name = self._named_scores().values()
        best_named = min(most, *(own[self._fewest_steps(own)] for own in by_name))
        steps = self._fewest_steps(lowest, best_named)
        worst = min(
            lowest[steps] * (1 + SIMPLER_TOLERANCE),
            best_named,
            *(own[steps] for own in by_name),
        )
        worst *= 1 + ROUNDING
        good = [_with_steps(plan, steps) for plan, own in scores.items() if own[steps] <= worst]
        return min(good, key=self._complexity)

    def _fewest_steps(self, scores: Mapping[int, float], worst: float = float("inf")) -> int:
        """The fewest steps whose score is about the best, and no worse than ``worst``."""
        tolerance = FEWER_STEPS_TOLERANCE if self._limits.total_steps is None else 0.0
        limit = min(worst, min(scores.values()) * (1 + tolerance))
        return min(steps for steps, score in scores.items() if score <= limit)

    def _complexity(self, plan: Plan) -> tuple[bool, float]:
        deferred = num_deferred(self._costs, plan.order)
        return plan.name != "baseline", self._load(plan) + deferred + len(plan.carried)

    def _check_memory(self, plans: Iterable[Plan]) -> None:
        memory = self._limits.memory_bytes
        if memory is None:
            return
        least = min(self._simulator.peak_bytes(plan) for plan in plans)
        if least > memory:
            raise UserError(
                f"memory: a worker has {memory} bytes, but a step needs at least {least}, with "
                "nothing deferred; give it that much, or make the batch smaller"
            )


def _with_steps(plan: Plan, steps: int) -> Plan:
    return replace(plan, steps_per_execution=steps, predicted=None)
