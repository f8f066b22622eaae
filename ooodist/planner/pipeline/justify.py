"""Makes a pipeline schedule faster by moving each action into a gap of its rank.

Forward-backward improvement, known from project scheduling (Li, Willis 1992; Valls, Ballestín,
Quintanilla 2005): all actions move into the latest gap that makes the step no longer, the last one
first, and then into the earliest one, the first one first. So W makes way for F and I::

    rank 0   F0 F1 .  I0 W0 .  I1 W1        F0 F1 .  I0 W0 I1 W1
    rank 1   .  F0 I0 W0 F1 I1 W1      ->   .  F0 I0 F1 I1 W0 W1

No action moves to where others behind it would exceed the memory limit. That links carry one
message at a time is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ooodist.planner.pipeline.actions import Action, Schedule
from ooodist.planner.pipeline.costs import PipelineCosts, forward_only
from ooodist.planner.pipeline.dependencies import SPLIT_KINDS, needs_of, users_of
from ooodist.planner.pipeline.simulate import simulate_pipeline

FARTHEST = 30  # actions of its rank that an action moves past; more take long, and gain little


def justified(schedule: Schedule, costs: PipelineCosts) -> Schedule:
    """The schedule with each action in the earliest gap, after all were moved into the latest one.

    Args:
        schedule: a schedule with separate I and W, without transfers.
        costs: the costs of its stages.

    Raises:
        Deadlock, UserError: as :func:`ooodist.planner.pipeline.simulate.simulate_pipeline`.
    """
    first = schedule.first_trained
    costs = forward_only(costs, first)
    runs = simulate_pipeline(schedule, costs).runs
    ends = {run.action: run.end for those in runs for run in those}
    # Sorting is stable: of actions that take no time, too, each comes after those that it needs.
    order = sorted(ends, key=_place, reverse=True)
    late = _packed(schedule, costs, sorted(order, key=lambda each: -ends[each]), late=True)
    ends = {placed.action: placed.end for rank in late for placed in rank.placed}
    order.reverse()
    early = _packed(schedule, costs, sorted(order, key=lambda each: -ends[each]), late=False)
    return replace(
        schedule, actions=tuple(tuple(each.action for each in rank.placed) for rank in early)
    )


def _place(action: Action) -> tuple[int, int]:
    """Orders the actions of a micro-batch such that each comes after those that it needs."""
    kind = SPLIT_KINDS.index(action.kind)
    return kind, action.stage if kind == 0 else -action.stage


def _packed(
    schedule: Schedule, costs: PipelineCosts, order: Iterable[Action], *, late: bool
) -> list[_Rank]:
    """Puts each action into the earliest gap of its rank.

    Args:
        schedule: has these actions.
        costs: the costs of the stages.
        order: the actions, each after those that it needs, or before, if ``late``.
        late: whether time runs backwards, so that the earliest gap is the latest one.
    """
    stages, rank_of = costs.stages, schedule.rank_of
    ranks = [_Rank(costs.memory_limit) for _ in schedule.actions]
    for position, cost in zip(rank_of, stages, strict=True):
        ranks[position].saved += cost.base_bytes
        ranks[position].free += cost.update if late else 0.0
    parts = {
        (stage, kind): _Part(schedule, costs, stage, kind, late=late)
        for stage in range(len(stages))
        for kind in SPLIT_KINDS
    }
    ends: dict[Action, float] = {}
    for action in order:
        stage, kind, microbatch = action
        rank, part = ranks[rank_of[stage]], parts[stage, kind]
        ready = rank.free
        for other, made, way in part.waits_for:
            ready = max(ready, ends[Action(other, made, microbatch)] + way)
        ends[action] = rank.put(action, ready, part.seconds, *part.bytes)
    return ranks


class _Part:
    """What actions of one stage and kind wait for and take.

    Attributes:
        waits_for: stage and kind of the other actions, and the seconds of the way from there.
        seconds: how long one takes.
        bytes: the change of the bytes kept at its start and at its end.
    """

    def __init__(
        self, schedule: Schedule, costs: PipelineCosts, stage: int, kind: str, *, late: bool
    ) -> None:
        stages, rank_of = costs.stages, schedule.rank_of
        begin, end = stages[stage].saved_bytes(kind)
        if late:
            others = users_of(stage, kind, len(stages), schedule.first_trained)
        else:
            others = needs_of(stage, kind, len(stages))
        self.waits_for = []
        for other, made in others:
            source, sent = (stage, kind) if late else (other, made)
            is_sent = rank_of[other] != rank_of[stage]
            way = stages[source].transfer_seconds(sent) if is_sent else 0.0
            self.waits_for.append((other, made, way))
        self.seconds = stages[stage].seconds(kind)
        self.bytes = (-end, -begin) if late else (begin, end)


@dataclass
class _Placed:
    """An action of a rank, and when it runs.

    Attributes:
        action: the action.
        start, end: in seconds.
        saved: the bytes that the rank keeps before it.
        begin: what it adds to them at its start.
    """

    action: Action
    start: float
    end: float
    saved: int
    begin: int


class _Rank:
    """What a rank runs, and when.

    Args:
        limit: the most bytes that it may keep; None: no limit.

    Attributes:
        placed: its actions in order.
        saved: the bytes that it keeps after the last one.
        free: when it begins.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.placed: list[_Placed] = []
        self.saved = 0
        self.free = 0.0

    def put(self, action: Action, ready: float, seconds: float, begin: int, end: int) -> float:
        """Puts an action into the earliest gap, and returns its end.

        Args:
            action: the action.
            ready: when its input has arrived, and the rank has begun.
            seconds: how long it takes.
            begin, end: the change of the bytes kept at its start and at its end.
        """
        placed = self.placed
        place = len(placed)
        start, saved = max(ready, placed[-1].end if placed else 0.0), self.saved
        for at in reversed(range(max(0, place - FARTHEST), place)):
            each = placed[at]
            # One that takes no time may need another one that takes none and is here already.
            if each.start <= ready or each.start < ready + seconds:
                break
            if not self._fits(each.saved + each.begin + begin + end):
                break
            free = max(ready, placed[at - 1].end if at else 0.0)
            if free + seconds <= each.start and self._fits(each.saved + begin):
                place, start, saved = at, free, each.saved
        placed.insert(place, _Placed(action, start, start + seconds, saved, begin))
        for each in placed[place + 1 :]:
            each.saved += begin + end
        self.saved += begin + end
        return start + seconds

    def _fits(self, num_bytes: int) -> bool:
        return self._limit is None or num_bytes <= self._limit
