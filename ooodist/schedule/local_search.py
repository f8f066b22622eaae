"""Improves a plan by small changes: moving a dW, moving, splitting and joining exchanges."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from ooodist.schedule.costs import StepCosts
from ooodist.schedule.exchanges import order_for, parts_of
from ooodist.schedule.orders import Moves, moved, stock_order
from ooodist.schedule.plan import Plan, PlannedExchange

HOW_OFTEN = (10, 2, 1.5, 1.5, 0.5)  # an exchange or a dW moves, splits, joins, another credit
FOLLOW = 0.7  # how often the dW follow a change of the exchanges
LEAST_PART_BYTES = 1 << 19  # smaller parts cost more than they bring
PATIENCE = 30  # with how old a score a new one is compared: see improve


class LocalSearch:
    """Small changes of plans that keep them legal, and which of them to keep.

    Args:
        costs: of the step.
        credits: that a plan may have.
        score: of a plan; less is better.
        rng: draws the changes.
    """

    def __init__(
        self,
        costs: StepCosts,
        credits: Sequence[int | None],
        score: Callable[[Plan], float],
        rng: random.Random,
    ) -> None:
        self._costs = costs
        self._stock = stock_order(costs)
        self._weights = {weight.name: weight for weight in costs.weights}
        self._moves = Moves(costs)
        self._credits = credits
        self._score = score
        self._rng = rng

    def improve(self, plan: Plan, changes: int) -> Plan:
        """The best plan that a walk of so many random changes finds.

        A change is kept if the plan is no worse than now, or than PATIENCE changes ago: so the
        walk leaves small hollows (Burke and Bykov, "The late acceptance hill-climbing heuristic",
        European Journal of Operational Research 258, 2017).
        """
        best, best_score = plan, self._score(plan)
        score = best_score
        past = deque([score] * PATIENCE, maxlen=PATIENCE)
        for _ in range(changes):
            changed = self._change(plan)
            value = self._score(changed)
            if value <= max(score, past[0]):
                plan, score = changed, value
                if score < best_score:
                    best, best_score = plan, score
            past.append(score)
        return best

    def simplify(self, plan: Plan, worst: float) -> Plan:
        """The plan with fewer splits and deferrals, as far as its score does not exceed ``worst``.

        What a prediction gains by a hair, noise takes away; and each exchange and each deferral
        costs something that the model does not know.
        """
        split = dict.fromkeys(e.weights[0] for e in plan.exchanges if e.parts > 1)
        for weight in split:
            whole = self._with_parts(plan, weight, 1)
            if self._score(whole) <= worst:
                plan = whole
        for name in self._moves.movable:
            order = plan.order or self._stock
            room = self._moves.room(order, name)
            behind = self._stock[: self._stock.index(name)]
            others = [other for other in order if other != name]
            earliest = 1 + max((others.index(other) for other in behind), default=-1)
            if earliest in room and order.index(name) != earliest:
                undone = replace(plan, order=moved(order, name, earliest))
                if self._score(undone) <= worst:
                    plan = undone
        return plan

    def _change(self, plan: Plan) -> Plan:
        """The plan with one change, or as it is if the change that was drawn is impossible."""
        kinds = (self._move_exchange, self._move_unit, self._split, self._join, self._set_credit)
        (kind,) = self._rng.choices(kinds, HOW_OFTEN)
        changed = kind(plan)
        follow = changed.exchanges is not plan.exchanges and self._rng.random() < FOLLOW
        return (
            replace(changed, order=order_for(self._costs, changed.exchanges)) if follow else changed
        )

    def _move_exchange(self, plan: Plan) -> Plan:
        """To any place or near by; sometimes with those behind it that carry the same weight."""
        exchanges = list(plan.exchanges)
        start = self._rng.randrange(len(exchanges))
        end = start + 1
        if self._rng.random() < 0.5:
            while end < len(exchanges) and exchanges[end].weights == exchanges[start].weights:
                end += 1
        block = exchanges[start:end]
        del exchanges[start:end]
        place = self._rng.randint(0, len(exchanges))
        if self._rng.random() < 0.5:
            place = min(max(start + self._rng.randint(-3, 3), 0), len(exchanges))
        exchanges[place:place] = block
        return replace(plan, exchanges=tuple(exchanges))

    def _move_unit(self, plan: Plan) -> Plan:
        if not self._moves.movable:
            return plan
        order = plan.order or self._stock
        name = self._rng.choice(self._moves.movable)
        place = self._rng.choice(self._moves.room(order, name))
        return replace(plan, order=moved(order, name, place))

    def _split(self, plan: Plan) -> Plan:
        """A bucket into two, or the parts of a gradient into twice as many."""
        index = self._rng.randrange(len(plan.exchanges))
        chosen = plan.exchanges[index]
        if len(chosen.weights) > 1:
            cut = self._rng.randrange(1, len(chosen.weights))
            halves = [PlannedExchange(chosen.weights[:cut]), PlannedExchange(chosen.weights[cut:])]
            return _with(plan, index, index + 1, halves)
        weight = self._weights[chosen.weights[0]]
        parts = min(chosen.parts * 2, weight.num_bytes // LEAST_PART_BYTES)
        if plan.by_urgency or parts <= chosen.parts:  # by urgency, the engine splits by itself
            return plan
        return self._with_parts(plan, weight.name, parts)

    def _join(self, plan: Plan) -> Plan:
        """Two neighbours into a bucket, or the parts of a gradient into half as many."""
        index = self._rng.randrange(len(plan.exchanges))
        first, *others = plan.exchanges[index : index + 2]
        if first.parts > 1:
            return self._with_parts(plan, first.weights[0], first.parts // 2)
        dtype = self._weights[first.weights[0]].dtype
        for second in others:
            if second.parts == 1 and self._weights[second.weights[0]].dtype == dtype:
                bucket = PlannedExchange(first.weights + second.weights)
                return _with(plan, index, index + 2, [bucket])
        return plan

    def _set_credit(self, plan: Plan) -> Plan:
        return replace(plan, credit=self._rng.choice(self._credits))

    def _with_parts(self, plan: Plan, weight: str, parts: int) -> Plan:
        """Each part of a gradient is replaced, where it stands, by those that begin within it."""
        new = parts_of(self._weights[weight], parts)
        exchanges: list[PlannedExchange] = []
        for exchange in plan.exchanges:
            if exchange.weights == (weight,):
                old = exchange.parts
                exchanges += [e for e in new if e.part * old // len(new) == exchange.part]
            else:
                exchanges.append(exchange)
        return replace(plan, exchanges=tuple(exchanges))


def _with(plan: Plan, start: int, end: int, exchanges: Sequence[PlannedExchange]) -> Plan:
    """The plan with other exchanges in these places."""
    return replace(plan, exchanges=(*plan.exchanges[:start], *exchanges, *plan.exchanges[end:]))
