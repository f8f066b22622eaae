"""The best pipeline schedule that is found for measured costs, under a memory limit.

It starts from the best of all schedules that have a name, fit and suit the placement of the stages,
and of those that rules make of the costs. Then single actions are moved forward or back among those
of their rank, as long as that helps (simulated annealing; the same costs give the same schedule).
So it is never slower, in simulation, than a named one that fits.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

from ooodist.schedule import pipeline
from ooodist.schedule.actions import (
    BACKWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    trained_from,
)
from ooodist.schedule.list_scheduling import Rule, list_schedule
from ooodist.schedule.pipeline_costs import PipelineCosts, forward_only
from ooodist.schedule.pipeline_evaluate import Evaluator
from ooodist.schedule.pipeline_simulate import peak_bytes, simulate_pipeline

EVALUATED_ACTIONS = 1_500_000  # in all evaluations of a search: some seconds
MOST_EVALUATIONS = 4_000
SCHEDULED_ACTIONS = 100_000  # in all schedules that rules make
LEAST_RULES = 8
STARTS = 3  # of searches, from the fastest that are known
FARTHEST_MOVE = 6  # of an action among those of its rank


def named_schedules(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> Iterator[Schedule]:
    """All schedules with a name for this placement of the stages, whether they fit or not."""
    ranks = max(rank_of) + 1
    chunks = len(rank_of) // ranks
    if rank_of == tuple(stage % ranks for stage in range(len(rank_of))):
        yield pipeline.gpipe(ranks, microbatches, chunks)
        yield pipeline.interleaved(ranks, microbatches, chunks)
        yield pipeline.modulo(ranks, microbatches, chunks, costs)
        yield pipeline.push(ranks, microbatches, chunks, costs)
    if rank_of == tuple(range(ranks)):
        yield pipeline.one_forward_one_backward(ranks, microbatches)
        yield pipeline.zero_bubble_h1(ranks, microbatches)
        yield pipeline.zero_bubble_h2(ranks, microbatches)
    if rank_of == (*range(ranks), *reversed(range(ranks))):
        yield pipeline.zero_bubble_v(ranks, microbatches)


def auto(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts, first_trained: int = 0
) -> Schedule:
    """The fastest schedule that is found.

    Args:
        rank_of: of each stage.
        microbatches: in a step.
        costs: of the stages, and the memory limit of a rank.
        first_trained: the stages before this one only run forward.

    Raises:
        UserError: the costs are those of another number of stages, not even one micro-batch fits
            into the memory limit, or there is no such stage.
    """
    costs = forward_only(costs, first_trained)
    named = _named_that_fit(rank_of, microbatches, costs)
    made = list(_made_by_rules(rank_of, microbatches, costs))
    # A B that nobody needs has no time in these costs, but its rank would wait for it.
    known = [trained_from(schedule, first_trained) for schedule in (*named, *made)]
    found = [(simulate_pipeline(schedule, costs), schedule) for schedule in known]
    found.sort(key=lambda item: item[0].makespan)
    evaluator = Evaluator(rank_of, microbatches, costs)
    for _, start in found[:STARTS]:
        seconds, improved = _improved(split(start), evaluator)
        if seconds < math.inf:
            found.append((simulate_pipeline(improved, costs), improved))
    # The search does not know of updates, which may take longer on one rank than on another.
    _, best = min(found, key=lambda item: (item[0].step_seconds, item[0].makespan))
    return replace(best, name="auto")


def fastest_named_seconds(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> float:
    """Of a step of the fastest schedule that has a name and fits; infinite if there is none."""
    those = _named_that_fit(rank_of, microbatches, costs)
    return min((simulate_pipeline(s, costs).step_seconds for s in those), default=math.inf)


def _named_that_fit(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> list[Schedule]:
    unlimited = replace(costs, memory_limit=None)
    those = named_schedules(rank_of, microbatches, unlimited)
    return [schedule for schedule in those if _fits(schedule, costs)]


def split(schedule: Schedule) -> Schedule:
    """The schedule with each BW as B and then W, so that what B computes is sent before W."""

    def parts(action: Action) -> tuple[Action, ...]:
        if action.kind != BACKWARD:
            return (action,)
        return action._replace(kind=INPUT_GRADIENT), action._replace(kind=WEIGHT_GRADIENT)

    return replace(
        schedule,
        actions=tuple(
            tuple(itertools.chain.from_iterable(map(parts, actions)))
            for actions in schedule.actions
        ),
    )


def _made_by_rules(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> Iterator[Schedule]:
    ranks = max(rank_of) + 1
    kinds = [("B", "F", "W"), ("B", "W", "F"), ("F", "B", "W")]
    wanted = (ranks, ranks + 1, ranks - 1, ranks // 2, 1, 2, 3)
    aheads = [None, *dict.fromkeys(ahead for ahead in wanted if ahead > 0)]
    rules = itertools.product(aheads, kinds, (True, False))
    number = max(LEAST_RULES, SCHEDULED_ACTIONS // (3 * len(rank_of) * microbatches))
    for ahead, order, deep in itertools.islice(rules, number):
        yield list_schedule(
            "auto", rank_of, microbatches, costs, Rule(order, ahead=ahead, deep=deep)
        )


def _fits(schedule: Schedule, costs: PipelineCosts) -> bool:
    limit = costs.memory_limit
    return limit is None or max(peak_bytes(schedule, costs)) <= limit


def _improved(start: Schedule, evaluator: Evaluator) -> tuple[float, Schedule]:
    """The schedule that moves of single actions lead to, and its seconds.

    They are infinite if the start does not fit into the memory limit.
    """
    orders = evaluator.orders_of(start)
    if not all(evaluator.fits(rank, order) for rank, order in enumerate(orders)):
        return math.inf, start
    seconds = evaluator.makespan(orders)
    best_seconds, best = seconds, [list(order) for order in orders]
    chance = random.Random(0)
    number = max(200, min(MOST_EVALUATIONS, EVALUATED_ACTIONS // evaluator.size))
    for step in range(number):
        # At first a slower schedule is taken now and then, later none.
        heat = 0.02 * seconds * (1 - step / number) ** 2
        rank = chance.randrange(len(orders))
        order = orders[rank]
        at = chance.randrange(len(order))
        to = max(0, min(len(order) - 1, at + chance.randint(-FARTHEST_MOVE, FARTHEST_MOVE)))
        if to == at:
            continue
        order.insert(to, order.pop(at))
        if evaluator.keeps_order(order, to, at) and evaluator.fits(rank, order):
            now = evaluator.makespan(orders)
            worse = now - seconds
            if worse <= 0 or (heat > 0 and chance.random() < math.exp(-worse / heat)):
                seconds = now
                if now < best_seconds:
                    best_seconds, best = now, [list(order) for order in orders]
                continue
        order.insert(at, order.pop(to))
    return best_seconds, evaluator.schedule_of(best)
