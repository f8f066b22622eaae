"""Makes a pipeline schedule faster by moving actions to other positions on their ranks.

Simulated annealing: a move is kept if the step gets no slower, and early in the walk sometimes also
if it does. Most moves are of an action on a critical path, without which the step cannot become
shorter (van Laarhoven, Aarts, Lenstra 1992). As that alone may make others wait, other moves are of
several at once: one micro-batch's on neighboring stages, or two of one rank. Where a rank then
keeps too much, the next actions that free memory move as well::

    stage 0   F0  F1  I0  F2  ...  W0             F0  F1  F2  I0  ...  W0
    stage 1       F0  I0  F1  W0  F2  ...    ->       F0  I0  F1  F2  W0  ...
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from ooodist.planner.pipeline.evaluate import Evaluator

Orders = list[list[int]]  # the numbers of each rank's actions
Move = tuple[int, int, int]  # a rank, and the positions from and to which its action moves

FARTHEST = 6  # positions that an action moves
HEAT = 0.05  # of the step's seconds: the typical slowdown that is accepted at first
MOST_STAGES = 4  # on which the same action moves
URGENT = 0.6  # the share of moves of an action on a critical path
# Weights of: one action, one on several stages, two of one rank; walks take turns.
HOW_OFTEN = ((6, 2, 2), (2, 2, 2), (1, 3, 1))


def improve(
    orders: Sequence[Sequence[int]], evaluator: Evaluator, evaluations: int, seed: int
) -> tuple[float, Orders]:
    """The fastest orders found on a random walk, after their step time in seconds.

    Args:
        orders: the start of the walk; they fit into the memory limit.
        evaluator: evaluates such orders.
        evaluations: the number of steps of the walk.
        seed: the seed of the walk; the same one leads to the same orders.
    """
    now = [evaluator.in_turn(order) for order in orders]
    seconds = evaluator.step_seconds(now)
    best_seconds, best = seconds, [list(order) for order in now]
    moves = _Moves(evaluator, random.Random(seed), HOW_OFTEN[seed % len(HOW_OFTEN)])
    moves.urgent = evaluator.urgent(now)
    for step in range(evaluations):
        heat = HEAT * seconds * (1 - step / evaluations) ** 2
        most = seconds - heat * math.log(1 - moves.chance.random())
        made = moves.make(now)
        if made:
            after = evaluator.step_seconds(now, most)
            if after <= most:
                seconds = after
                moves.urgent = evaluator.urgent(now)
                if after < best_seconds:
                    best_seconds, best = after, [list(order) for order in now]
                    if best_seconds <= evaluator.least_seconds * (1 + 1e-9):
                        break
            else:
                moves.undo(now, made)
    return best_seconds, best


class _Moves:
    """Random moves that keep each F before its I before its W, and the memory limit."""

    def __init__(
        self, evaluator: Evaluator, chance: random.Random, how_often: Sequence[int]
    ) -> None:
        self._evaluator, self.chance, self._how_often = evaluator, chance, how_often
        self.urgent: list[tuple[int, int]] = []

    def make(self, orders: Orders) -> dict[int, list[int]]:
        """Changes the orders and returns those of before; none if the moves are impossible."""
        before: dict[int, list[int]] = {}
        for rank, at, by in self._drawn(orders):
            order = orders[rank]
            to = max(0, min(len(order) - 1, at + by))
            if to == at:
                continue
            before.setdefault(rank, order.copy())
            order.insert(to, order.pop(at))
            if not self._evaluator.keeps_order(order, to, at):
                break
        else:
            if all(self._evaluator.make_fit(rank, orders[rank]) for rank in before):
                return before
        self.undo(orders, before)
        return {}

    @staticmethod
    def undo(orders: Orders, before: Mapping[int, list[int]]) -> None:
        for rank, order in before.items():
            orders[rank] = order

    def _drawn(self, orders: Orders) -> list[Move]:
        """Draws moves: for each, the rank, the action's position and how far it is to move."""
        chance = self.chance
        rank = chance.randrange(len(orders))
        at = chance.randrange(len(orders[rank]))
        by = self._distance()
        (kind,) = chance.choices(range(3), self._how_often)
        if self.urgent and chance.random() < URGENT:
            rank, at = chance.choice(self.urgent)
            by = -abs(by)
            if chance.random() < 0.5:
                at, by = at - 1, -by
        drawn = [(rank, at, by)]
        if kind == 1:
            upwards = chance.random() < 0.5
            number = orders[rank][at]
            for _ in range(chance.randint(1, MOST_STAGES - 1)):
                following = self._evaluator.on_next_stage(number, upwards=upwards)
                if following is None:
                    break
                rank, number = following
                if number not in orders[rank]:  # its stage does not train
                    break
                drawn.append((rank, orders[rank].index(number), by))
        elif kind == 2:
            other = max(0, min(len(orders[rank]) - 1, at + self._distance()))
            drawn.append((rank, other, self._distance()))
        return drawn

    def _distance(self) -> int:
        return self.chance.choice((-1, 1)) * self.chance.randint(1, FARTHEST)
