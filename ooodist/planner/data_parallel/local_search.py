"""Improves a plan by small changes: moving a dW, moving, splitting, joining, carrying exchanges."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from ooodist.planner.costs import StepCosts
from ooodist.planner.data_parallel.exchanges import OrderFor, parts_of
from ooodist.planner.data_parallel.orders import Moves, baseline_order, is_legal, moved
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange
from ooodist.planner.rows import travels_as_rows

HOW_OFTEN = (10, 3, 3, 0.3, 2)  # weights: move, split, join exchanges, set the credit, move a dW
HOW_OFTEN_CARRIED = 4  # the weight of carrying one exchange more or less
MOST_DRAWS = 8  # of changes, if those that were drawn change nothing
LEAST_PART_BYTES = 1 << 19  # smaller chunks cost more than they gain
NUM_LOSSES = 50  # changes for the worse that are observed before any is accepted
MOST_UNDONE = 128  # approximate maximum of groups into which what is to be undone is divided
HOT = 0.3  # accepted loss at first, relative to the median of these
COLD = 1e-2  # and in the end, relative to HOT


class LocalSearch:
    """Small changes of plans that keep them legal, and the decision which of them to keep.

    Args:
        costs: costs of the step.
        credits: allowed credits.
        score: score of a plan; less is better.
        rng: draws the changes.
        carrying: whether exchanges may be carried.
    """

    def __init__(
        self,
        costs: StepCosts,
        credits: Sequence[int | None],
        score: Callable[[Plan], float],
        rng: random.Random,
        *,
        carrying: bool = False,
    ) -> None:
        self._costs = costs
        self._baseline = baseline_order(costs)
        self._place = {name: index for index, name in enumerate(self._baseline)}
        self._weights = {weight.name: weight for weight in costs.weights}
        self._moves = Moves(costs)
        self._order_for = OrderFor(costs)
        self._credits = credits
        self._score = score
        self._rng = rng
        self._carrying = carrying

    def improve(self, plan: Plan, changes: int, *, follow: bool) -> Plan:
        """The best plan found by simulated annealing with this many random changes.

        Args:
            plan: the start; it is returned if nothing better is found.
            changes: how many are tried.
            follow: keep the backward units in the order that is best for the sequence of exchanges
                (see OrderFor in exchanges.py), so that only the sequence is searched. Otherwise
                both are searched, which is redundant without limits and priorities.
        """
        best, best_score = plan, self._score(plan)
        if follow:
            plan = self._followed(plan)
        score = self._score(plan)
        losses: list[float] = []  # of the first changes for the worse: their typical size
        hot = 0.0
        for index in range(changes):
            worst = score - hot * COLD ** (index / changes) * math.log(1 - self._rng.random())
            changed = self._changed(plan, follow=follow)
            if follow:
                changed = self._followed(changed)
            value = self._score(changed)
            if score < value < math.inf and len(losses) < NUM_LOSSES:
                losses.append(value - score)
                hot = HOT * median(losses) if len(losses) == NUM_LOSSES else 0.0
            if value <= worst:
                plan, score = changed, value
                if score < best_score:
                    best, best_score = plan, score
        return best

    def _followed(self, plan: Plan) -> Plan:
        exchanges = plan.exchanges
        if plan.steps_per_execution == 1:  # no call waits for what it leaves
            exchanges = tuple(sorted(exchanges, key=lambda e: e.carried))
        return replace(plan, order=self._order_for.sequence(exchanges))

    def simplify(self, plan: Plan, worst: float) -> Plan:
        """Removes splits, deferrals and what is carried, while the score stays within ``worst``.

        Noise outweighs tiny predicted gains, and each exchange and each deferral costs something
        that the model does not know.
        """
        split = list(dict.fromkeys(e.weights[0] for e in plan.exchanges if e.parts > 1))
        plan = self._undo(plan, split, _whole, worst)
        carried = [e.name for e in plan.exchanges if e.carried]
        plan = self._undo(plan, carried, _not_carried, worst)
        return self._undo(plan, self._moves.movable, self._undeferred, worst)

    def _undo(
        self,
        plan: Plan,
        names: Sequence[str],
        undo: Callable[[Plan, Sequence[str]], Plan],
        worst: float,
    ) -> Plan:
        """Undoes as many of these as the score allows: all, or some of each half."""
        undone = undo(plan, names)
        if undone == plan:
            return plan
        if self._score(undone) <= worst:
            return undone
        if len(names) <= max(1, len(self._baseline) // MOST_UNDONE):
            return plan
        half = len(names) // 2
        plan = self._undo(plan, names[:half], undo, worst)
        return self._undo(plan, names[half:], undo, worst)

    def _undeferred(self, plan: Plan, names: Sequence[str]) -> Plan:
        """Moves each unit right after all its predecessors in baseline order, if that is legal."""
        order = plan.order or self._baseline
        chosen = set(names)
        others = [name for name in order if name not in chosen]
        least = [self._place[name] for name in others]  # minimum over this one and those after it
        for index in reversed(range(len(least) - 1)):
            least[index] = min(least[index], least[index + 1])
        changed: list[str] = []
        start = 0
        for name in sorted(chosen, key=self._place.__getitem__):
            end = bisect_left(least, self._place[name])
            changed += (*others[start:end], name)
            start = end
        changed += others[start:]
        if tuple(changed) == order or not is_legal(self._costs, changed):
            return plan
        return replace(plan, order=tuple(changed))

    def _changed(self, plan: Plan, *, follow: bool) -> Plan:
        """The plan with one change, or unchanged if no drawn change is possible."""
        kinds = [self._move_exchange, self._split, self._join, self._set_credit]
        if not follow:
            kinds.append(self._move_unit)
        how_often = HOW_OFTEN[: len(kinds)]
        if self._carrying:
            kinds.append(self._carry)
            how_often = (*how_often, HOW_OFTEN_CARRIED)
        for _ in range(MOST_DRAWS):
            (kind,) = self._rng.choices(kinds, how_often)
            changed = kind(plan)
            if changed != plan:
                return changed
        return plan

    def _move_exchange(self, plan: Plan) -> Plan:
        """Moves an exchange anywhere or nearby; sometimes with followers, or all of its weight."""
        exchanges = list(plan.exchanges)
        start = self._rng.randrange(len(exchanges))
        end = start + 1
        which = self._rng.random()
        if which < 0.3:
            end = min(start + self._rng.randint(2, 8), len(exchanges))
        elif which < 0.6:
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
        order = plan.order or self._baseline
        name = self._rng.choice(self._moves.movable)
        place = self._rng.choice(self._moves.room(order, name))
        return replace(plan, order=moved(order, name, place))

    def _split(self, plan: Plan) -> Plan:
        """Splits a bucket in two, or a gradient into twice as many chunks."""
        index = self._rng.randrange(len(plan.exchanges))
        chosen = plan.exchanges[index]
        if len(chosen.weights) > 1:
            cut = self._rng.randrange(1, len(chosen.weights))
            both = chosen.weights[:cut], chosen.weights[cut:]
            halves = [replace(chosen, weights=weights) for weights in both]
            return _with(plan, index, index + 1, halves)
        weight = self._weights[chosen.weights[0]]
        parts = min(chosen.parts * 2, weight.num_bytes // LEAST_PART_BYTES)
        if plan.by_urgency or parts <= chosen.parts:  # by urgency, the engine splits by itself
            return plan
        return self._with_parts(plan, weight.name, parts)

    def _join(self, plan: Plan) -> Plan:
        """Joins two neighbors into a bucket, or the chunks of a gradient into half as many."""
        index = self._rng.randrange(len(plan.exchanges))
        first, *others = plan.exchanges[index : index + 2]
        if first.parts > 1:
            return self._with_parts(plan, first.weights[0], first.parts // 2)
        dtype = self._weights[first.weights[0]].dtype
        for second in others:
            if (
                second.parts == 1
                and self._weights[second.weights[0]].dtype == dtype
                and second.carried == first.carried
            ):
                bucket = replace(first, weights=first.weights + second.weights)
                return _with(plan, index, index + 2, [bucket])
        return plan

    def _set_credit(self, plan: Plan) -> Plan:
        return replace(plan, credit=self._rng.choice(self._credits))

    def _carry(self, plan: Plan) -> Plan:
        """Carries an exchange, or carries it no longer; sometimes with all chunks of its weight."""
        chosen = self._rng.choice(plan.exchanges)
        if travels_as_rows(self._weights[chosen.weights[0]]):
            return plan
        whole = chosen.parts > 1 and self._rng.random() < 0.5
        exchanges = (
            replace(e, carried=not chosen.carried)
            if e.weights == chosen.weights and (whole or e.part == chosen.part)
            else e
            for e in plan.exchanges
        )
        return replace(plan, exchanges=tuple(exchanges))

    def _with_parts(self, plan: Plan, weight: str, parts: int) -> Plan:
        """Replaces each chunk of a gradient, in its place, by the new ones that begin within it."""
        new = parts_of(self._weights[weight], parts)
        exchanges: list[PlannedExchange] = []
        for exchange in plan.exchanges:
            if exchange.weights == (weight,):
                old = exchange.parts
                exchanges += [
                    replace(e, carried=exchange.carried)
                    for e in new
                    if e.part * old // len(new) == exchange.part
                ]
            else:
                exchanges.append(exchange)
        return replace(plan, exchanges=tuple(exchanges))


def _with(plan: Plan, start: int, end: int, exchanges: Sequence[PlannedExchange]) -> Plan:
    """The plan with the exchanges from ``start`` to ``end`` replaced."""
    return replace(plan, exchanges=(*plan.exchanges[:start], *exchanges, *plan.exchanges[end:]))


def _whole(plan: Plan, weights: Sequence[str]) -> Plan:
    """The plan with these gradients unsplit, in the place and the call of their first chunks."""
    chosen = set(weights)
    exchanges = [
        replace(exchange, parts=1) if exchange.weights[0] in chosen else exchange
        for exchange in plan.exchanges
        if exchange.part == 0 or exchange.weights[0] not in chosen
    ]
    return replace(plan, exchanges=tuple(exchanges))


def _not_carried(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan with the exchanges of these names not carried."""
    chosen = set(names)
    exchanges = (replace(e, carried=False) if e.name in chosen else e for e in plan.exchanges)
    return replace(plan, exchanges=tuple(exchanges))
