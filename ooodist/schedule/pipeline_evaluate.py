"""The makespan of many orders of the same actions, fast: all is numbers and lists.

An action's number is (3 stage + kind) microbatches + microbatch, with kind 0 for F, 1 for B and 2
for W. The times are those of :func:`ooodist.schedule.pipeline_simulate.simulate_pipeline`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ooodist.schedule.actions import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)
from ooodist.schedule.pipeline_costs import PipelineCosts

KINDS = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)


class Evaluator:
    """For schedules with these stages, micro-batches and costs, in which B and W are apart."""

    def __init__(self, rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts) -> None:
        costs.check(len(rank_of))
        self._rank_of, self._microbatches = rank_of, microbatches
        stages = len(rank_of)
        ranks = max(rank_of) + 1
        self.size = 3 * stages * microbatches
        self._limit = costs.memory_limit
        self._base = [0] * ranks
        # All else is the same for all micro-batches: of number 3 stage + kind.
        self._seconds: list[float] = []
        self._bytes: list[tuple[int, int]] = []
        self._waits: list[bool] = []  # for another stage
        self._receiver: list[int] = []  # what waits for its result; -1: nothing
        self._link: list[int] = []  # that the result takes; -1: the same rank
        self._way: list[float] = []  # seconds on the link
        for stage, cost in enumerate(costs.stages):
            self._base[rank_of[stage]] += cost.base_bytes
            for kind, name in enumerate(KINDS):
                self._seconds.append(cost.seconds(name))
                self._bytes.append(cost.kept_bytes(name))
                before, after = {0: (stage - 1, stage + 1), 1: (stage + 1, stage - 1)}.get(
                    kind, (-1, -1)
                )
                self._waits.append(0 <= before < stages)
                sends = 0 <= after < stages
                self._receiver.append(3 * after + kind if sends else -1)
                other = rank_of[after] if sends else rank_of[stage]
                same = other == rank_of[stage]
                self._link.append(-1 if same else rank_of[stage] * ranks + other)
                self._way.append(cost.send_seconds if kind == 0 else cost.send_back_seconds)

    def orders_of(self, schedule: Schedule) -> list[list[int]]:
        """The numbers of its actions, of each rank."""
        return [
            [self._number(action) for action in actions if action.kind in KINDS]
            for actions in schedule.actions
        ]

    def schedule_of(self, orders: Sequence[Sequence[int]]) -> Schedule:
        """The schedule of such numbers."""
        return Schedule(
            "orders",
            self._rank_of,
            self._microbatches,
            tuple(tuple(map(self._action, order)) for order in orders),
        )

    def _number(self, action: Action) -> int:
        stage, kind, microbatch = action
        return (3 * stage + KINDS.index(kind)) * self._microbatches + microbatch

    def _action(self, number: int) -> Action:
        rest, microbatch = divmod(number, self._microbatches)
        stage, kind = divmod(rest, 3)
        return Action(stage, KINDS[kind], microbatch)

    def keeps_order(self, order: Sequence[int], one: int, other: int) -> bool:
        """Whether the action that was moved from the other place to this one has left none behind
        that must come before it, nor passed one that must come after it."""
        moved, m = order[one], self._microbatches
        kind = moved // m % 3
        if one < other:
            return kind == 0 or moved - m not in order[one : other + 1]
        return kind == 2 or moved + m not in order[other : one + 1]

    def fits(self, rank: int, order: Sequence[int]) -> bool:
        """Whether a rank with this order keeps to the memory limit."""
        if self._limit is None:
            return True
        kept = self._base[rank]
        for number in order:
            begin, end = self._bytes[number // self._microbatches]
            if kept + begin > self._limit:
                return False
            kept += begin + end
        return True

    def makespan(self, orders: Sequence[Sequence[int]]) -> float:
        """Seconds of a step; infinite where ranks wait for each other."""
        waits, receiver, seconds = self._waits, self._receiver, self._seconds
        link, way, m = self._link, self._way, self._microbatches
        arrival: dict[int, float] = {}
        link_free: dict[int, float] = {}
        waiting: dict[int, int] = {}
        at = [0] * len(orders)
        time = [0.0] * len(orders)
        ready = list(range(len(orders)))
        while ready:
            rank = ready.pop()
            order = orders[rank]
            now = time[rank]
            position = at[rank]
            while position < len(order):
                number = order[position]
                part, microbatch = divmod(number, m)
                if waits[part]:
                    there = arrival.get(number)
                    if there is None:
                        waiting[number] = rank
                        break
                    now = max(now, there)
                now += seconds[part]
                position += 1
                if receiver[part] >= 0:
                    target, sent = receiver[part] * m + microbatch, now
                    if link[part] >= 0:
                        sent = max(now, link_free.get(link[part], 0.0)) + way[part]
                        link_free[link[part]] = sent
                    arrival[target] = sent
                    if target in waiting:
                        ready.append(waiting.pop(target))
            at[rank], time[rank] = position, now
        return math.inf if waiting else max(time)
