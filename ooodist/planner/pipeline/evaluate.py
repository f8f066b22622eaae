"""Fast evaluation of the step time of many orders of the same actions, with plain integers.

An action's number is (3 stage + kind) microbatches + microbatch, with kind 0 for F, 1 for I and 2
for W. The times equal those of :func:`ooodist.planner.pipeline.simulate.simulate_pipeline`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ooodist.planner.pipeline.actions import Action, Kind, Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.dependencies import SPLIT_KINDS, needs_of, receiver_of
from ooodist.planner.pipeline.simulate import period_of


class Evaluator:
    """Evaluates orders for fixed stages, micro-batches and costs; I and W are separate actions.

    Attributes:
        size: the number of actions in a schedule in which all stages train.
        least_seconds: a lower bound of the step time in seconds; no order is faster.
    """

    def __init__(self, rank_of: tuple[int, ...], microbatches: int, costs: PipelineCosts) -> None:
        costs.check(len(rank_of))
        self._rank_of, self._microbatches = rank_of, microbatches
        stages = len(rank_of)
        ranks = max(rank_of) + 1
        self.size = 3 * stages * microbatches
        self._limit = costs.memory_limit
        self._base = [0] * ranks
        self._update = [0.0] * ranks
        self._stages = costs.stages
        self._exchanging = any(cost.exchange for cost in costs.stages)
        self._work = [0.0] * ranks  # seconds without waiting, including the update
        self._bytes: list[tuple[int, int]] = []  # indexed by 3 stage + kind
        # All the other lists are indexed by the action's number.
        self._seconds: list[float] = []
        self._arrival: list[float] = []  # of its input from another stage; infinite: not yet known
        self._receiver: list[int] = []  # the action that waits for its result; -1: none
        self._link: list[int] = []  # the link that carries its result; -1: stays on the rank
        self._way: list[float] = []  # seconds on the link
        for stage, cost in enumerate(costs.stages):
            rank = rank_of[stage]
            self._base[rank] += cost.base_bytes
            self._update[rank] += cost.update
            work = cost.seconds(Kind.F) + cost.seconds(Kind.B)
            self._work[rank] += microbatches * work + cost.update
            for number, kind in enumerate(SPLIT_KINDS):
                waits = any(maker != stage for maker, _ in needs_of(stage, kind, stages))
                receiver = receiver_of(stage, kind, stages)
                link, receivers = -1, [-1] * microbatches
                if receiver is not None:  # the waiting action has the same kind
                    first = (3 * receiver + number) * microbatches
                    receivers = list(range(first, first + microbatches))
                    if rank_of[receiver] != rank:
                        link = rank * ranks + rank_of[receiver]
                self._bytes.append(cost.saved_bytes(kind))
                self._seconds += [cost.seconds(kind)] * microbatches
                self._arrival += [math.inf if waits else 0.0] * microbatches
                self._receiver += receivers
                self._link += [link] * microbatches
                self._way += [cost.transfer_seconds(kind)] * microbatches
        self._maker = {to: number for number, to in enumerate(self._receiver) if to >= 0}
        for rank in range(ranks):
            # The last action of a rank is a W, if all its stages train, and the exchange of a
            # stage's last bucket follows.
            own = [cost for cost, at in zip(costs.stages, rank_of, strict=True) if at == rank]
            self._work[rank] += min(cost.exchange / cost.buckets for cost in own)
        self.least_seconds = self._least_seconds(costs)

    def _least_seconds(self, costs: PipelineCosts) -> float:
        """A lower bound of the step time: when the first F reaches a rank, all its work
        is still to do, and one micro-batch must pass through all stages and back."""
        ranks, stages = self._rank_of, costs.stages
        way = least = 0.0
        for stage, cost in enumerate(stages):
            if ranks.index(ranks[stage]) == stage:
                least = max(least, way + self._work[ranks[stage]])
            way += cost.forward
            if stage + 1 < len(stages) and ranks[stage + 1] != ranks[stage]:
                way += cost.send_seconds
        for stage, cost in reversed(list(enumerate(stages))):
            way += cost.input_gradient
            if stage > 0 and ranks[stage - 1] != ranks[stage]:
                way += cost.send_back_seconds
        last = way + stages[0].weight_gradient + stages[0].exchange / stages[0].buckets
        # A first stage that only runs forward costs nothing there, and its rank's update need not
        # wait for the way back.
        if stages[0].seconds(Kind.B) or stages[0].update:
            last += self._update[ranks[0]]
        return max(least, last)

    def orders_of(self, schedule: Schedule) -> list[list[int]]:
        """The numbers of the actions of each rank."""
        return [
            [self._number(action) for action in actions if action.kind in SPLIT_KINDS]
            for actions in schedule.actions
        ]

    def schedule_of(self, orders: Sequence[Sequence[int]]) -> Schedule:
        """The schedule in which each rank runs the actions with these numbers."""
        return Schedule(
            "orders",
            self._rank_of,
            self._microbatches,
            tuple(tuple(map(self._action, order)) for order in orders),
        )

    def _number(self, action: Action) -> int:
        stage, kind, microbatch = action
        return (3 * stage + SPLIT_KINDS.index(kind)) * self._microbatches + microbatch

    def _action(self, number: int) -> Action:
        rest, microbatch = divmod(number, self._microbatches)
        stage, kind = divmod(rest, 3)
        return Action(stage, SPLIT_KINDS[kind], microbatch)

    def on_next_stage(self, number: int, *, upwards: bool) -> tuple[int, int] | None:
        """Rank and number of the same action on the next (or previous) stage, or None."""
        number += 3 * self._microbatches if upwards else -3 * self._microbatches
        if 0 <= number < self.size:
            return self._rank_of[number // (3 * self._microbatches)], number
        return None

    def keeps_order(self, order: Sequence[int], one: int, other: int) -> bool:
        """Whether the action moved from position ``other`` to ``one`` has passed none that
        must stay before or after it.

        Those are actions of its micro-batch, and of its kind in adjacent micro-batches: renumbering
        a stage's micro-batches in the order in which it runs them makes no order slower.
        """
        moved, m = order[one], self._microbatches
        part, microbatch = divmod(moved, m)
        kind = part % 3
        if one < other:
            passed = order[one + 1 : other + 1]
            return (kind == 0 or moved - m not in passed) and (
                microbatch == 0 or moved - 1 not in passed
            )
        passed = order[other:one]
        return (kind == 2 or moved + m not in passed) and (
            microbatch == m - 1 or moved + 1 not in passed
        )

    def in_turn(self, order: Sequence[int]) -> list[int]:
        """The order with each stage's micro-batches renumbered in turn; it is as fast."""
        parts = [number // self._microbatches for number in order]
        turns = [itertools.count(part * self._microbatches) for part in range(len(self._bytes))]
        return [next(turns[part]) for part in parts]

    def fits(self, rank: int, order: Sequence[int]) -> bool:
        """Whether a rank with this order stays within the memory limit."""
        if self._limit is None:
            return True
        saved = self._base[rank]
        for number in order:
            begin, end = self._bytes[number // self._microbatches]
            if saved + begin > self._limit:
                return False
            saved += begin + end
        return True

    def make_fit(self, rank: int, order: list[int]) -> bool:
        """Moves actions that free memory forward to where an action would exceed the limit.

        Returns:
            whether the order then fits.
        """
        if self._limit is None:
            return True
        saved, m = self._base[rank], self._microbatches
        done: set[int] = set()
        for at in range(len(order)):
            number = order[at]
            begin, end = self._bytes[number // m]
            if saved + begin > self._limit:
                for later in range(at, len(order)):
                    number = order[later]
                    begin, end = self._bytes[number // m]
                    is_ready = (number // m) % 3 == 0 or number - m in done
                    if begin + end < 0 and saved + begin <= self._limit and is_ready:
                        break
                else:
                    return False
                order.insert(at, order.pop(later))
            saved += begin + end
            done.add(number)
        return True

    def step_seconds(self, orders: Sequence[Sequence[int]], most: float = math.inf) -> float:
        """The seconds of a step; infinity if the ranks deadlock.

        Args:
            orders: the numbers of each rank's actions.
            most: the longest time of interest, in seconds; beyond it, infinity may be returned.
        """
        ends = self._ends_of_step(orders, [0.0] * len(orders), {}, most)
        return math.inf if ends is None else max(ends[0])

    def period(self, orders: Sequence[Sequence[int]]) -> float:
        """The seconds of a step among many without barriers, of orders without deadlocks.

        It equals :func:`ooodist.planner.pipeline.simulate.pipeline_period`.
        """
        link_free: dict[int, float] = {}

        def ends_of_step(begins: Sequence[float]) -> list[float]:
            found = self._ends_of_step(orders, begins, link_free)
            assert found is not None
            ends, ended = found
            metrics = max(ended[-3 * self._microbatches : -2 * self._microbatches])
            return [max(metrics, end) for end in ends]

        return period_of(ends_of_step, len(orders))

    def urgent(self, orders: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """The rank and position of actions that make the step as long as it is.

        They are those on a critical path that start as soon as their rank's previous action ends:
        only if one of them is moved before that one can the step become shorter.
        """
        found = self._ends_of_step(orders, [0.0] * len(orders), {})
        assert found is not None
        done, ended = found
        rank = max(range(len(orders)), key=done.__getitem__)
        position = len(orders[rank]) - 1
        path = []
        while position > 0:
            number = orders[rank][position]
            start = ended[number] - self._seconds[number]
            if ended[orders[rank][position - 1]] >= start * (1 - 1e-9):
                path.append((rank, position))
                position -= 1
                continue
            maker = self._maker[number]
            rank = self._rank_of[maker // (3 * self._microbatches)]
            position = orders[rank].index(maker)
        return path

    def _ends_of_step(
        self,
        orders: Sequence[Sequence[int]],
        begins: Sequence[float],
        link_free: dict[int, float],
        most: float = math.inf,
    ) -> tuple[list[float], list[float]] | None:
        """Finds when each rank's update and when each action ends, by its number.

        Args:
            orders: the numbers of each rank's actions.
            begins: when each rank begins.
            link_free: when each link is free, which changes.
            most: as in :meth:`step_seconds`.

        Returns:
            None if the ranks deadlock or take longer than ``most``.
        """
        receiver, seconds, link, way = self._receiver, self._seconds, self._link, self._way
        microbatches = self._microbatches
        arrival = self._arrival.copy()
        waiting: dict[int, int] = {}  # from an action that cannot start yet to its rank
        at = [0] * len(orders)
        time = list(begins)
        ended = [0.0] * self.size  # of each action; 0 for those of stages that do not train
        # How long each rank may still wait, with a margin: sums round differently by their order.
        slack = [most * (1 + 1e-9) - work for work in self._work]
        ready = list(range(len(orders)))
        while ready:
            rank = ready.pop()
            order = orders[rank]
            now = time[rank]
            for position in range(at[rank], len(order)):
                number = order[position]
                there = arrival[number]
                if there > now:
                    if there == math.inf:
                        waiting[number] = rank
                        at[rank] = position
                        break
                    slack[rank] -= there - now
                    if slack[rank] < 0:
                        return None
                    now = there
                now += seconds[number]
                ended[number] = now
                target = receiver[number]
                if target >= 0:
                    sent = now
                    if link[number] >= 0:
                        sent = max(now, link_free.get(link[number], 0.0)) + way[number]
                        link_free[link[number]] = sent
                    arrival[target] = sent
                    if target in waiting:
                        ready.append(waiting.pop(target))
            time[rank] = now
        if waiting:
            return None
        if self._exchanging:
            m, stages = microbatches, range(len(self._stages))
            last = [max(ended[(3 * stage + 2) * m : (3 * stage + 3) * m]) for stage in stages]
            self._exchange_until(time, last, orders)
        done = [end + update for end, update in zip(time, self._update, strict=True)]
        return done, ended

    def _exchange_until(
        self, time: list[float], ready: Sequence[float], orders: Sequence[Sequence[int]]
    ) -> None:
        """Puts off the time at which each rank is done to the end of its exchanges.

        Args:
            time: the end of each rank's last action, in seconds.
            ready: the end of each stage's last W.
            orders: the numbers of each rank's actions.
        """
        tails = self._tail_seconds(orders)
        free = [0.0] * len(time)
        for stage in sorted(range(len(ready)), key=ready.__getitem__):
            cost = self._stages[stage]
            if cost.exchange:
                rank = self._rank_of[stage]
                _, free[rank] = cost.exchange_span(ready[stage], tails[stage], free[rank])
                time[rank] = max(time[rank], free[rank])

    def _tail_seconds(self, orders: Sequence[Sequence[int]]) -> list[float]:
        """Finds for each stage the seconds of its W's in its rank's tail, as the simulator."""
        tails = [0.0] * len(self._stages)
        for order in orders:
            ends: dict[int, float] = {}
            elapsed = 0.0
            for number in reversed(order):
                stage, kind = divmod(number // self._microbatches, 3)
                if kind != 2:
                    break
                ends.setdefault(stage, elapsed)
                elapsed += self._seconds[number]
                tails[stage] = elapsed - ends[stage]
        return tails
