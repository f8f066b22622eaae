"""The best pipeline schedule that is found for measured costs, under a memory limit.

It starts from the best of all schedules that have a name, fit and suit the placement of the stages,
of Zero Bubble's heuristic, and of those that rules make of the costs. Then actions are moved among
those of their rank, on several walks, as long as that helps (the same costs give the same
schedule). So it is never slower, in simulation, than a published one that fits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ooodist.planner.pipeline import schedules, zero_bubble
from ooodist.planner.pipeline.actions import (
    BACKWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    trained_from,
)
from ooodist.planner.pipeline.costs import PipelineCosts, forward_only
from ooodist.planner.pipeline.evaluate import Evaluator
from ooodist.planner.pipeline.list_scheduling import Rule, list_schedule
from ooodist.planner.pipeline.moves import Orders, improve
from ooodist.planner.pipeline.simulate import simulate_pipeline

EVALUATED_ACTIONS = 4_500_000  # in all evaluations of a search: some seconds
MOST_EVALUATIONS = 24_000
LEAST_EVALUATIONS = 500  # of a walk; fewer lead nowhere
MOST_WALKS = 12
SCHEDULED_ACTIONS = 100_000  # in all schedules that rules make
LEAST_RULES = 4
STARTS = 3  # of walks, the fastest that are known
MOST_TRIED = 3  # schedules that are worth trying in earnest
NEARLY = 0.05  # by which a known schedule may be slower in simulation, to be tried


def named_schedules(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> Iterator[Schedule]:
    """All schedules with a name for this placement of the stages, whether they fit or not."""
    ranks = max(rank_of) + 1
    chunks = len(rank_of) // ranks
    if rank_of == tuple(stage % ranks for stage in range(len(rank_of))):
        yield schedules.gpipe(ranks, microbatches, chunks)
        yield schedules.interleaved(ranks, microbatches, chunks)
        yield schedules.modulo(ranks, microbatches, chunks, costs)
        yield schedules.push(ranks, microbatches, chunks, costs)
    if rank_of == tuple(range(ranks)):
        yield schedules.one_forward_one_backward(ranks, microbatches)
        yield schedules.zero_bubble_h1(ranks, microbatches)
        yield schedules.zero_bubble_h2(ranks, microbatches)
    if rank_of == (*range(ranks), *reversed(range(ranks))):
        yield schedules.zero_bubble_v(ranks, microbatches)


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
    # First of all what says whether anything fits into the memory limit.
    made = list(_made_by_rules(rank_of, microbatches, costs))
    known = [*_published(rank_of, microbatches, costs), *made]
    evaluator = Evaluator(rank_of, microbatches, costs)
    # An I that nobody needs has no time in these costs, but its rank would wait for it.
    starts = _fastest_first([trained_from(each, first_trained) for each in known], evaluator)
    seconds, orders = min(_walks(starts, evaluator), key=lambda found: found[0])
    for start in starts:
        if start.seconds > seconds:
            break
        # Where it is as good, what has a name is better with its I and W in one.
        if simulate_pipeline(start.schedule, costs).step_seconds <= seconds:
            return replace(start.schedule, name="auto")
    return replace(evaluator.schedule_of(orders), name="auto")


def best_known(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts, first_trained: int = 0
) -> Schedule:
    """The fastest, in simulation, of the schedules that were published and fit; found at once.

    Only where none fits into the memory limit, it is the fastest that rules make of the costs. It
    keeps its name, with ``_split`` behind it where it is faster with its I and W apart.

    Args, Raises: as :func:`auto`.
    """
    costs = forward_only(costs, first_trained)
    evaluator = Evaluator(rank_of, microbatches, costs)
    for make in (_published, _made_by_rules):
        known = make(rank_of, microbatches, costs)
        starts = _fastest_first([trained_from(each, first_trained) for each in known], evaluator)
        if starts:
            return _as_good(starts[0], costs)
    raise AssertionError("rules raise UserError where nothing fits")


def schedules_to_try(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> tuple[Schedule, ...]:
    """The best that is found, and the published ones that are nearly as fast in simulation.

    Predictions err by some percent, and the orders of the work differ in what they ask of caches
    and neighbors: steps in earnest tell which is best.

    Args, Raises: as :func:`auto`.
    """
    evaluator = Evaluator(rank_of, microbatches, costs)
    best = auto(rank_of, microbatches, costs)
    orders = evaluator.orders_of(split(best))
    most = (1 + NEARLY) * evaluator.step_seconds(orders)
    known = _fastest_first(_published(rank_of, microbatches, costs), evaluator)
    near = [start for start in known if start.seconds <= most]
    found = [] if any(start.orders == orders for start in near) else [best]
    return (*found, *(_as_good(start, costs) for start in near))[:MOST_TRIED]


def _as_good(start: _Start, costs: PipelineCosts) -> Schedule:
    """As it was made, unless it is slower so than with its I and W apart."""
    if simulate_pipeline(start.schedule, costs).step_seconds <= start.seconds * (1 + 1e-9):
        return start.schedule
    return replace(split(start.schedule), name=f"{start.schedule.name}_split")


def fastest_named_seconds(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> float:
    """Of a step of the fastest schedule that has a name and fits, if I and W are apart; infinite if
    there is none."""
    named = named_schedules(rank_of, microbatches, replace(costs, memory_limit=None))
    starts = _fastest_first(named, Evaluator(rank_of, microbatches, costs))
    return starts[0].seconds if starts else math.inf


@dataclass(frozen=True)
class _Start:
    """A schedule that is known, with its I and W apart.

    Attributes:
        seconds: of a step.
        schedule: as it was made.
        orders: the numbers of its actions.
    """

    seconds: float
    schedule: Schedule
    orders: list[list[int]]


def _fastest_first(schedules: Iterable[Schedule], evaluator: Evaluator) -> list[_Start]:
    """Those that fit into the memory limit, each once."""
    found: dict[tuple[tuple[int, ...], ...], _Start] = {}
    for schedule in schedules:
        orders = evaluator.orders_of(split(schedule))
        key = tuple(map(tuple, orders))
        if key not in found and all(itertools.starmap(evaluator.fits, enumerate(orders))):
            found[key] = _Start(evaluator.step_seconds(orders), schedule, orders)
    return sorted(found.values(), key=lambda start: start.seconds)


def _walks(starts: Sequence[_Start], evaluator: Evaluator) -> Iterator[tuple[float, Orders]]:
    """The seconds and orders of the fastest start, and what walks from the first few lead to."""
    yield starts[0].seconds, starts[0].orders
    evaluations = min(MOST_EVALUATIONS, EVALUATED_ACTIONS // evaluator.size)
    walks = min(MOST_WALKS, evaluations // LEAST_EVALUATIONS)
    best = starts[0].seconds
    for walk in range(walks):
        if best <= evaluator.least_seconds * (1 + 1e-9):
            return
        start = starts[walk % min(STARTS, len(starts))]
        seconds, orders = improve(start.orders, evaluator, evaluations // walks, walk)
        best = min(best, seconds)
        yield seconds, orders


def _published(
    rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts
) -> Iterator[Schedule]:
    """All schedules with a name, with and without regard to the memory limit, and those of Zero
    Bubble's heuristic; some may not fit."""
    for those in dict.fromkeys((replace(costs, memory_limit=None), costs)):
        yield from named_schedules(rank_of, microbatches, those)
    if rank_of == tuple(range(len(rank_of))):
        yield from zero_bubble.automatic(microbatches, costs)


def split(schedule: Schedule) -> Schedule:
    """The schedule with each B as I and then W, so that what I computes is sent before W."""

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
    kinds = [("I", "F", "W"), ("I", "W", "F"), ("F", "I", "W")]
    wanted = (ranks, ranks + 1, ranks - 1, ranks // 2, 1, 2, 3)
    aheads = [None, *dict.fromkeys(ahead for ahead in wanted if ahead > 0)]
    # With one stage a rank there is nothing to choose from in depth.
    deep_or_not = (True, False) if ranks < len(rank_of) else (True,)
    rules = itertools.product(aheads, kinds, deep_or_not)
    number = max(LEAST_RULES, SCHEDULED_ACTIONS // (3 * len(rank_of) * microbatches))
    for ahead, order, deep in itertools.islice(rules, number):
        yield list_schedule(
            "auto", rank_of, microbatches, costs, Rule(order, ahead=ahead, deep=deep)
        )
