"""Searches for the fastest pipeline schedule for measured costs, under a memory limit.

The search starts from the fastest of: all named schedules (``named/kinds.py``) that fit and suit
the placement of the stages, list schedules made from the costs, and what forward-backward
improvement makes of them (``justify.py``). Then several random walks move actions to other
positions on their ranks, for a fixed budget or until a lower bound is reached (equal costs give
equal schedules). In simulation, no schedule in ``named/kinds.py`` that fits is faster.

Walks minimize the seconds of a step that ends with a barrier, which are fast to compute. Where
steps have none (``PipelineCosts.has_barrier``), what walks have found and what is known is compared
by the seconds of a step among many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ooodist.planner.pipeline.actions import Action, Kind, Schedule, trained_from
from ooodist.planner.pipeline.costs import PipelineCosts, forward_only
from ooodist.planner.pipeline.dependencies import SPLIT_KINDS
from ooodist.planner.pipeline.evaluate import Evaluator
from ooodist.planner.pipeline.justify import justified
from ooodist.planner.pipeline.list_scheduling import Rule, list_schedule
from ooodist.planner.pipeline.moves import Orders, improve
from ooodist.planner.pipeline.named.kinds import KINDS
from ooodist.planner.pipeline.simulate import SAME, step_seconds

EVALUATED_ACTIONS = 4_500_000  # in all evaluations of a search: a few seconds
MOST_EVALUATIONS = 60_000
LEAST_EVALUATIONS = 500  # of a walk; fewer lead nowhere
MOST_WALKS = 12
SCHEDULED_ACTIONS = 100_000  # in all schedules that rules make
LEAST_RULES = 4
JUSTIFIED_ACTIONS = 40_000  # in all schedules that are justified
STARTS = 4  # walks begin at the fastest known schedules
MOST_TRIED = 3  # schedules that are tried in training
NEARLY = 0.05  # a known schedule may be slower by this share in simulation and still be tried


def named_schedules(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> Iterator[Schedule]:
    """Yields all named schedules for this placement of the stages, whether they fit or not."""
    ranks = max(rank_of) + 1
    chunks = len(rank_of) // ranks
    # Of schedules that are equally fast, the first counts.
    for kind in sorted(KINDS.values(), key=lambda kind: not kind.other_chunks):
        if kind.may_have(chunks) and rank_of == kind.rank_of(ranks, chunks):
            yield from kind.variants(ranks, microbatches, chunks, costs)


def auto(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts, first_trained: int = 0
) -> Schedule:
    """The fastest schedule that the search finds.

    Args:
        rank_of: the rank of each stage.
        microbatches: the number of micro-batches in a step.
        costs: the costs of the stages, and the memory limit of a rank.
        first_trained: the stages before this one only run forward.

    Raises:
        UserError: the costs are those of another number of stages, not even one micro-batch fits
            into the memory limit, or there is no such stage.
    """
    costs = forward_only(costs, first_trained)
    # The rules come first: they raise UserError if nothing fits into the memory limit.
    made = list(_made_by_rules(rank_of, microbatches, costs))
    known = [*named_schedules(rank_of, microbatches, costs), *made]
    evaluator = Evaluator(rank_of, microbatches, costs)
    # An I that nobody needs takes no time in these costs, but its rank would still wait to run it.
    starts = _fastest_first([trained_from(each, first_trained) for each in known], evaluator)
    most = JUSTIFIED_ACTIONS // evaluator.size
    tight = [justified(split(start.schedule), costs) for start in starts[:most]]
    starts = _fastest_first([*(start.schedule for start in starts), *tight], evaluator)
    found = list(_walks(starts, evaluator))
    if not costs.has_barrier:
        starts = _as_run(starts, evaluator, costs)
        found = [(evaluator.period(orders), orders) for _, orders in found]
        found.append((starts[0].seconds, starts[0].orders))
    seconds, orders = min(found, key=lambda each: each[0])
    for start in starts:
        if start.seconds > seconds:
            break
        # If a known schedule is as fast as it was made, with I and W in one, prefer it.
        if step_seconds(start.schedule, costs) <= seconds:
            return replace(start.schedule, name="auto")
    return replace(evaluator.schedule_of(orders), name="auto")


def best_known(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts, first_trained: int = 0
) -> Schedule:
    """Finds, without a search, the published schedule that fits and is fastest in simulation.

    Only if none fits into the memory limit, it is the fastest list schedule made from the costs.
    It keeps its name, with the suffix ``_split`` if it is faster with separate I and W.

    Args and errors are those of :func:`auto`.
    """
    costs = forward_only(costs, first_trained)
    evaluator = Evaluator(rank_of, microbatches, costs)
    for make in (named_schedules, _made_by_rules):
        known = make(rank_of, microbatches, costs)
        starts = _fastest_first([trained_from(each, first_trained) for each in known], evaluator)
        if starts := _as_run(starts, evaluator, costs):
            return _as_good(starts[0], costs)
    raise AssertionError("rules raise UserError where nothing fits")


def schedules_to_try(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> tuple[Schedule, ...]:
    """The best schedule found, and published ones that are nearly as fast in simulation.

    Predictions err by some percent, and orders differ in the load they put on caches and
    neighbors: only real steps tell which one is best.

    Args and errors are those of :func:`auto`.
    """
    evaluator = Evaluator(rank_of, microbatches, costs)
    best = auto(rank_of, microbatches, costs)
    orders = evaluator.orders_of(split(best))
    most = (1 + NEARLY) * step_seconds(best, costs)
    known = _fastest_first(named_schedules(rank_of, microbatches, costs), evaluator)
    known = _as_run(known, evaluator, costs)
    near = [start for start in known if start.seconds <= most]
    found = [] if any(start.orders == orders for start in near) else [best]
    return (*found, *(_as_good(start, costs) for start in near))[:MOST_TRIED]


def _as_good(start: _Start, costs: PipelineCosts) -> Schedule:
    """The schedule as it was made, or split if it is faster with separate I and W."""
    if step_seconds(start.schedule, costs) <= start.seconds * (1 + SAME):
        return start.schedule
    return replace(split(start.schedule), name=f"{start.schedule.name}_split")


def fastest_named_seconds(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> float:
    """The step seconds of the fastest named schedule that fits, with separate I and W;
    infinity if none fits."""
    named = named_schedules(rank_of, microbatches, replace(costs, memory_limit=None))
    evaluator = Evaluator(rank_of, microbatches, costs)
    starts = _as_run(_fastest_first(named, evaluator), evaluator, costs)
    return starts[0].seconds if starts else math.inf


@dataclass(frozen=True)
class _Start:
    """A known schedule from which a walk can start.

    Attributes:
        seconds: seconds of a step with separate I and W.
        schedule: the schedule as it was made.
        orders: the numbers of its actions on each rank, with separate I and W.
    """

    seconds: float
    schedule: Schedule
    orders: list[list[int]]


def _fastest_first(schedules: Iterable[Schedule], evaluator: Evaluator) -> list[_Start]:
    """The distinct schedules that fit into the memory limit, the fastest first."""
    found: dict[tuple[tuple[int, ...], ...], _Start] = {}
    for schedule in schedules:
        orders = evaluator.orders_of(split(schedule))
        key = tuple(map(tuple, orders))
        if key not in found and all(itertools.starmap(evaluator.fits, enumerate(orders))):
            found[key] = _Start(evaluator.step_seconds(orders), schedule, orders)
    return sorted(found.values(), key=lambda start: start.seconds)


def _as_run(starts: list[_Start], evaluator: Evaluator, costs: PipelineCosts) -> list[_Start]:
    """The same schedules with the seconds of a step as it is run, the fastest first."""
    if costs.has_barrier:
        return starts
    found = [replace(start, seconds=evaluator.period(start.orders)) for start in starts]
    return sorted(found, key=lambda start: start.seconds)


def _walks(starts: Sequence[_Start], evaluator: Evaluator) -> Iterator[tuple[float, Orders]]:
    """Yields seconds and orders of the fastest start, then those of walks from the first few."""
    yield starts[0].seconds, starts[0].orders
    evaluations = min(MOST_EVALUATIONS, EVALUATED_ACTIONS // evaluator.size)
    walks = min(MOST_WALKS, evaluations // LEAST_EVALUATIONS)
    best = starts[0].seconds
    for walk in range(walks):
        if best <= evaluator.least_seconds * (1 + SAME):
            return
        start = starts[walk % min(STARTS, len(starts))]
        seconds, orders = improve(start.orders, evaluator, evaluations // walks, walk)
        best = min(best, seconds)
        yield seconds, orders


def split(schedule: Schedule) -> Schedule:
    """The schedule with each B replaced by I and W, so that I's result is sent before W."""

    def parts(action: Action) -> tuple[Action, ...]:
        if action.kind != Kind.B:
            return (action,)
        return action._replace(kind=Kind.I), action._replace(kind=Kind.W)

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
    forward, input_gradient, weight_gradient = SPLIT_KINDS
    kinds = [
        (input_gradient, forward, weight_gradient),
        (input_gradient, weight_gradient, forward),
        SPLIT_KINDS,
    ]
    wanted = (ranks, ranks + 1, ranks - 1, ranks // 2, 1, 2, 3)
    aheads = [None, *dict.fromkeys(ahead for ahead in wanted if ahead > 0)]
    # With one stage per rank, ``deep`` makes no difference.
    deep_or_not = (True, False) if ranks < len(rank_of) else (True,)
    rules = itertools.product(aheads, kinds, deep_or_not)
    number = max(LEAST_RULES, SCHEDULED_ACTIONS // (3 * len(rank_of) * microbatches))
    for ahead, order, deep in itertools.islice(rules, number):
        yield list_schedule(
            "auto", rank_of, microbatches, costs, Rule(order, ahead=ahead, deep=deep)
        )
