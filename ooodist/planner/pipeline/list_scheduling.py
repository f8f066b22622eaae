"""List scheduling from costs: a rank that is free starts the most urgent action that is ready.

Gradient fast-forwarding, modulo allocation and push are rules of this kind (Oh et al., EuroSys'22):
a rank computes and sends input gradients first, and does weight gradients when it would be idle.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from itertools import count

from ooodist.planner.pipeline.actions import Action, Kind, Schedule, check_size
from ooodist.planner.pipeline.costs import PipelineCosts, stages_of_rank
from ooodist.planner.pipeline.dependencies import needs_of, result_of, users_of
from ooodist.planner.pipeline.simulate import Links


@dataclass(frozen=True)
class Rule:
    """The priorities by which a rank chooses its next action.

    Attributes:
        kinds: F, I and W, or F and B; the most urgent first.
        entering: the most micro-batches that may be started and not yet finished on stage 0's rank;
            None: no limit.
        ahead: by how many F the last stage may be ahead of its I (or B), and one more for each
            stage before it; None: no limit.
        deep: among actions of one kind, prefer the earlier micro-batch; if False, the earlier of
            the rank's stages (the later one for I).
    """

    kinds: tuple[str, ...] = (Kind.I, Kind.F, Kind.W)
    entering: int | None = None
    ahead: int | None = None
    deep: bool = True


def list_schedule(
    name: str, rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts, rule: Rule
) -> Schedule:
    """The schedule that the rule produces with these costs.

    Raises:
        UserError: there is no stage or no micro-batch, the costs are those of another number of
            stages, or not even one micro-batch fits into the memory limit.
    """
    check_size(len(rank_of), microbatches)
    costs.check(len(rank_of))
    return _Making(name, rank_of, microbatches, costs, rule).schedule()


class _Making:
    """Simulates the pipeline event by event and records what each rank does."""

    def __init__(
        self,
        name: str,
        rank_of: tuple[int, ...],
        microbatches: int,
        costs: PipelineCosts,
        rule: Rule,
    ) -> None:
        self._name, self._rank_of, self._microbatches = name, rank_of, microbatches
        self._costs, self._rule = costs, rule
        self._stages = len(rank_of)
        self._ranks = max(rank_of) + 1
        self._stages_of = [stages_of_rank(rank_of, rank) for rank in range(self._ranks)]
        self._backward = Kind.B if Kind.B in rule.kinds else Kind.I
        self._urgency_of_kind = {kind: number for number, kind in enumerate(rule.kinds)}
        self._saved = [
            sum(costs.stages[stage].base_bytes for stage in stages) for stages in self._stages_of
        ]
        # On its rank, from each stage on, so that a micro-batch that begins can end.
        self._needed = [
            costs.most_of_one([s for s in self._stages_of[rank] if s >= stage])
            for stage, rank in enumerate(rank_of)
        ]
        self._busy_until = [0.0] * self._ranks
        self._links = Links(rank_of)
        self._users = {
            (stage, kind): self._users_of(stage, kind)
            for stage in range(self._stages)
            for kind in rule.kinds
        }
        self._done: dict[tuple[int, str], int] = defaultdict(int)
        # The micro-batches that each rank could run next, as a heap for each stage and kind.
        self._ready: list[dict[tuple[int, str], list[int]]] = [
            {(stage, kind): [] for stage in stages for kind in rule.kinds}
            for stages in self._stages_of
        ]
        self._actions: list[list[Action]] = [[] for _ in range(self._ranks)]
        # Events by time: an action becomes ready on its rank (None: the rank has become free).
        self._events: list[tuple[float, int, int, Action | None]] = []
        self._number = count()

    def schedule(self) -> Schedule:
        for microbatch in range(self._microbatches):
            self._at(0.0, Action(0, Kind.F, microbatch))
        while self._events:
            now = self._events[0][0]
            woken = set()
            while self._events and self._events[0][0] <= now:  # all that is ready by then
                _, _, rank, action = heapq.heappop(self._events)
                woken.add(rank)
                if action is not None:
                    stage, kind, microbatch = action
                    heapq.heappush(self._ready[rank][stage, kind], microbatch)
            for rank in sorted(woken):
                if self._busy_until[rank] <= now:
                    self._start_one(rank, now)
        kinds = 2 if self._backward == Kind.B else 3
        if sum(map(len, self._actions)) < kinds * self._stages * self._microbatches:
            raise self._costs.refuse_one_microbatch(f"schedule {self._name}", self._rank_of)
        return Schedule(
            self._name, self._rank_of, self._microbatches, tuple(map(tuple, self._actions))
        )

    def _start_one(self, rank: int, now: float) -> None:
        allowed = [
            (self._urgency_of(stage, kind, microbatches[0]), stage, kind)
            for (stage, kind), microbatches in self._ready[rank].items()
            if microbatches and self._allowed(rank, stage, kind)
        ]
        if not allowed:
            return
        _, stage, kind = min(allowed)
        microbatch = heapq.heappop(self._ready[rank][stage, kind])
        action = Action(stage, kind, microbatch)
        self._actions[rank].append(action)
        cost = self._costs.stages[stage]
        end = now + cost.seconds(kind)
        self._busy_until[rank] = end
        self._done[stage, kind] += 1
        self._saved[rank] += sum(cost.saved_bytes(kind))
        for user, waiting in self._users[stage, kind]:
            at = end
            if user != stage:
                at = self._links.arrival(stage, user, end, cost.transfer_seconds(kind))
            self._at(at, Action(user, waiting, microbatch))
        self._wake(end, rank)

    def _users_of(self, stage: int, kind: str) -> list[tuple[int, str]]:
        """The actions that become ready when the result of such an action arrives: those
        of which it is the last need to be met."""
        made = stage, result_of(kind)
        return [
            (user, waiting)
            for user, waiting in users_of(stage, kind, self._stages, kinds=self._rule.kinds)
            if needs_of(user, waiting, self._stages)[-1] == made
        ]

    def _allowed(self, rank: int, stage: int, kind: str) -> bool:
        """Whether memory and the limits of the rule let such an action start now."""
        if kind == Kind.W:
            return True
        if kind != Kind.F:
            # If it does not fit, the W of earlier ones must run first: the first one always fits.
            return self._within(rank, self._costs.stages[stage].gradient_bytes)
        begun, rule = self._done[stage, Kind.F], self._rule
        if stage == 0 and rule.entering is not None:
            ended = min(
                self._done[each, Kind.B] + self._done[each, Kind.W]
                for each in self._stages_of[rank]
            )
            if begun - ended >= rule.entering:
                return False
        if rule.ahead is not None:
            most = rule.ahead + self._stages - 1 - stage
            if begun - self._done[stage, self._backward] >= most:
                return False
        return self._fits(rank, stage)

    def _fits(self, rank: int, stage: int) -> bool:
        """Whether a micro-batch fits here and on the rank's later stages, so it can end."""
        return self._within(rank, self._needed[stage])

    def _within(self, rank: int, more: int) -> bool:
        limit = self._costs.memory_limit
        return limit is None or self._saved[rank] + more <= limit

    def _urgency_of(self, stage: int, kind: str, microbatch: int) -> tuple[int, int, int]:
        depth = stage if kind == Kind.F else -stage
        first = self._urgency_of_kind[kind]
        if self._rule.deep:
            return first, microbatch, -depth
        return first, depth, microbatch

    def _at(self, time: float, action: Action) -> None:
        event = (time, next(self._number), self._rank_of[action.stage], action)
        heapq.heappush(self._events, event)

    def _wake(self, time: float, rank: int) -> None:
        heapq.heappush(self._events, (time, next(self._number), rank, None))
