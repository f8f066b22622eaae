"""The loop of the simulator: plays a call through by the rules in simulate.py's docstring.

Most steps need not be played. If each weight is waited for by an F unit, nothing is in flight at
the end of a forward pass, so the steps of a call differ only in what follows their backward pass,
which is the next forward pass or the end::

    F1 F2 F3   X3 X2 W1 W2 W3 ..uF1 ....uF2 ....uF3   X3 X2 W1 W2 W3 ..u.......u.......u
    once       as often as there are steps but one    once

So playing one step gives the seconds of calls of any number of steps. With carried exchanges, the
first forward pass waits, too, and the last backward pass hands over less, so two steps are played
for calls of two or more, and one for a call of one. A call ends with nothing in flight, so all
calls but a training's first are alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.indexed import IndexedCosts, IndexedPlan
from ooodist.planner.data_parallel.lanes import make_lanes
from ooodist.planner.data_parallel.plan import Plan


class SimulatedExecution:
    """One call as it is played through; times are seconds from its start.

    Attributes:
        lanes: the network, with what has passed it.
        recorded: (step, kind, number, start, end) of all that the compute stream does; None for no
            recording, which is faster.
    """

    def __init__(
        self,
        costs: IndexedCosts,
        plan: IndexedPlan,
        settings: Plan,
        network: Network,
        recorded: list[tuple[int, str, int, float, float]] | None = None,
    ) -> None:
        self.recorded = recorded
        self.lanes = make_lanes(network, settings, plan.pieces)
        self._costs = costs
        self._plan = plan
        self._steps = settings.steps_per_execution
        self._backward_seconds = [costs.backward_seconds[unit] for unit in plan.order]
        self._parts_left: dict[int, list[int]] = {}  # by step, then by weight
        self._steps_applied = [0] * len(plan.num_parts)
        self._taken = 0  # number of arrivals that the compute stream has dealt with
        self._next_end = math.inf  # when the next arrival is complete
        self._idle_until = -math.inf  # end of the last idle time
        self._idle_seconds = 0.0  # what is left of it for the CPU time of exchanges

    def play(self) -> float:
        """Plays all steps; returns when the last update has ended."""
        now = self._begin()
        for step in range(self._steps):
            now = self._forward(step, now)
            now = self._backward(step, now, is_last=step + 1 == self._steps)
        return self._end(now)

    def repeat(self, numbers: Sequence[int]) -> list[float] | None:
        """What playing yields for calls of each of these numbers of steps, if all steps are alike.

        It plays a single step. With carried exchanges it plays two, and the numbers must be 2 or
        more. If steps are not alike, the result is None.
        """
        if not self._costs.all_awaited or self._plan.second:  # which enter as others arrive
            return None
        if self._plan.carried:
            return self._repeat_carrying(numbers)
        start = self._forward(0, 0.0)
        backward_end = self._backward(0, start)
        if max(numbers) == 1:
            return [self._end(backward_end)] * len(numbers)
        before = self._taken, self._next_end, self._idle_until, self._idle_seconds
        parts_left = self._parts_left[0].copy()
        forward_end = self._forward(1, backward_end)
        if self._idle_until >= forward_end:
            return None  # zero-cost units: the idle time reaches into the backward pass
        self._taken, self._next_end, self._idle_until, self._idle_seconds = before
        self._parts_left[0] = parts_left
        end = self._end(backward_end)
        return [end + (number - 1) * (forward_end - start) for number in numbers]

    def _repeat_carrying(self, numbers: Sequence[int]) -> list[float] | None:
        start = self._forward(0, self._begin())
        is_idle = self._idle_until >= start
        forward_end = self._forward(1, self._backward(0, start))
        if is_idle or self._idle_until >= forward_end:
            return None  # as above
        end = self._end(self._backward(1, forward_end, is_last=True))
        return [end + (number - 2) * (forward_end - start) for number in numbers]

    def _begin(self) -> float:
        """Hands over what the call before has left; returns when the first F unit may begin."""
        carried = self._plan.carried
        if not carried:
            return 0.0
        before = -1  # the last step of the call before
        parts_left = self._parts_left[before] = [0] * len(self._plan.num_parts)
        for exchange in carried:
            for weight in self._plan.weights[exchange]:
                self._steps_applied[weight] = before
                parts_left[weight] += 1
        self.lanes.hand_over(before, carried, 0.0)
        self._next_end = self.lanes.next_end(0, 0.0)
        return self._settle(0.0)

    def _forward(self, step: int, now: float) -> float:
        """Plays the forward pass that begins now; returns when it ends."""
        applied, recorded = self._steps_applied, self.recorded
        if not step and recorded is None and not self._plan.carried:  # no updates to wait for
            return now + self._costs.forward_seconds
        for number, (seconds, weights) in enumerate(self._costs.forward):
            for weight in weights:
                while applied[weight] < step:
                    now = self._idle(now)
            start = now
            now += seconds
            if recorded is not None:
                recorded.append((step, "F", number, start, now))
            if self._next_end <= now:
                now = self._settle(now)
        return now

    def _backward(self, step: int, now: float, *, is_last: bool = False) -> float:
        """Plays the middle of the step and its backward pass; returns when they end."""
        lanes, recorded, handed_over = self.lanes, self.recorded, self._plan.handed_over
        if is_last:
            handed_over = self._plan.handed_over_last
        self._parts_left[step] = self._plan.num_parts.copy()
        for number, seconds in enumerate((self._costs.middle_seconds, *self._backward_seconds)):
            start = now
            now += seconds
            if recorded is not None:
                unit = ("backward", number - 1) if number else ("middle", 0)
                recorded.append((step, *unit, start, now))
            if handed_over[number]:
                lanes.hand_over(step, handed_over[number], now)
                self._next_end = lanes.next_end(self._taken, now)
            if self._next_end <= now:
                now = self._settle(now)
        return now

    def _end(self, now: float) -> float:
        """Deals with all that is in flight; returns when that is done."""
        while self._next_end < math.inf:
            now = self._idle(now)
        return now

    def _idle(self, now: float) -> float:
        """Idles until the next arrival; returns when it, and those meanwhile, are dealt with."""
        self._idle_until = self._next_end
        self._idle_seconds = self._next_end - now
        return self._settle(self._next_end)

    def _settle(self, now: float) -> float:
        """Deals with all that has arrived by ``now``, and meanwhile; returns when that is done."""
        lanes, weights_of = self.lanes, self._plan.weights
        update_seconds, recorded = self._costs.update_seconds, self.recorded
        taken, next_end = self._taken, self._next_end
        while next_end <= now:
            end, _, piece, step, exchange, is_last = lanes.arrivals[taken]
            cpu_seconds = piece.cpu_seconds
            if cpu_seconds and end <= self._idle_until:
                free = min(cpu_seconds, self._idle_seconds)
                self._idle_seconds -= free
                cpu_seconds -= free
            now += cpu_seconds
            if is_last:
                parts_left = self._parts_left[step]
                members = weights_of[exchange]
                if not members:
                    lanes.follow(step, self._plan.second[exchange], now)
                for weight in members:
                    parts_left[weight] -= 1
                    if not parts_left[weight]:  # it is complete, and updated
                        start = now
                        now += update_seconds[weight]
                        self._steps_applied[weight] += 1
                        if recorded is not None:
                            recorded.append((step, "update", weight, start, now))
            taken += 1
            next_end = lanes.next_end(taken, now)
        self._taken, self._next_end = taken, next_end
        return now
