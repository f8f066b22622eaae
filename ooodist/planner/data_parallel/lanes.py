"""The network of the simulator: when exchanges enter it, and when they are complete.

An exchange passes two lanes, each of which serves one at a time, first come, first served
(see :class:`ooodist.planner.costs.Network`), so exchanges complete in the order in which they
enter. When they enter, and in which order, depends on the plan::

    in sequence   1 2 3 4: each as soon as it is ready, those before it have entered, and fewer
                  than `credit` exchanges are in flight
    by urgency    whenever fewer than `credit` pieces are in flight: the next piece of the
                  exchange that comes first in the plan, of those that are ready
"""

from __future__ import annotations

import heapq
import math
import sys
from abc import ABC, abstractmethod
from typing import TypeAlias

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.indexed import Piece
from ooodist.planner.data_parallel.plan import Plan

# A piece that has passed the network, or is sure to: when it is complete, when its bytes begin to
# move, the piece, its step, its exchange, and whether it completes the exchange. (A plain tuple,
# because so many are made: a named one takes eight times as long.)
Arrival: TypeAlias = tuple[float, float, Piece, int, int, bool]


class Lanes(ABC):
    """The two lanes, and all that has entered them.

    Attributes:
        arrivals: in the order in which they enter, which is the order in which they complete.
    """

    def __init__(
        self, network: Network, pieces: list[tuple[Piece, ...]], credit: int | None
    ) -> None:
        self._credit = credit or sys.maxsize
        self.arrivals: list[Arrival] = []
        self._pieces = pieces
        self._latency = network.latency
        self._push_free = 0.0
        self._pull_free = 0.0

    @abstractmethod
    def hand_over(self, step: int, exchanges: list[int], now: float) -> None:
        """Hands over exchanges of a step that are ready now; ``next_end`` is called right after.

        ``now`` never decreases.
        """

    @abstractmethod
    def next_end(self, taken: int, now: float) -> float:
        """Finds when arrival number ``taken`` is complete; infinite if there is none.

        Those before it must be complete by ``now``, and all that is ready by now handed over.
        """

    @abstractmethod
    def follow(self, step: int, exchange: int, now: float) -> None:
        """Hands over the second of two exchanges, for which no credit is needed in sequence."""

    def _enter(self, time: float, step: int, exchange: int, number: int) -> float:
        pieces = self._pieces[exchange]
        piece = pieces[number]
        _, push_seconds, pull_seconds, _ = piece
        begin = time + self._latency
        if begin < self._push_free:
            begin = self._push_free
        self._push_free = end = begin + push_seconds
        if end < self._pull_free:
            end = self._pull_free
        self._pull_free = end = end + pull_seconds
        self.arrivals.append((end, begin, piece, step, exchange, number + 1 == len(pieces)))
        return end


class InSequence(Lanes):
    """Exchanges enter in the order in which they are handed over."""

    def __init__(
        self, network: Network, pieces: list[tuple[Piece, ...]], credit: int | None
    ) -> None:
        super().__init__(network, pieces, credit)
        self._ends: list[float] = []  # when each exchange is complete

    def hand_over(self, step: int, exchanges: list[int], now: float) -> None:
        ends, credit = self._ends, self._credit
        for exchange in exchanges:
            time = now
            if len(ends) >= credit and ends[-credit] > now:
                time = ends[-credit]
            end = self._enter(time, step, exchange, 0)
            for number in range(1, len(self._pieces[exchange])):
                end = self._enter(time, step, exchange, number)
            ends.append(end)

    def follow(self, step: int, exchange: int, now: float) -> None:
        for number in range(len(self._pieces[exchange])):
            self._enter(now, step, exchange, number)

    def next_end(self, taken: int, now: float) -> float:
        return self.arrivals[taken][0] if taken < len(self.arrivals) else math.inf


class ByUrgency(Lanes):
    """Whenever the credit allows it, the most urgent of the pieces that are ready enters.

    What becomes ready at that very instant competes, too.
    """

    def __init__(
        self, network: Network, pieces: list[tuple[Piece, ...]], credit: int | None
    ) -> None:
        super().__init__(network, pieces, credit)
        self._waiting: list[tuple[int, int]] = []  # heap of (exchange, step)
        self._num_entered = [0] * len(pieces)  # pieces of each exchange's earliest waiting step
        self._last_ready = 0.0
        self._next_entry = math.inf  # unless something becomes ready before

    def hand_over(self, step: int, exchanges: list[int], now: float) -> None:
        while self._next_entry < now:
            self._enter_next()
        for exchange in exchanges:
            heapq.heappush(self._waiting, (exchange, step))
        self._last_ready = now
        self._find_next_entry()

    def follow(self, step: int, exchange: int, now: float) -> None:
        self.hand_over(step, [exchange], now)

    def next_end(self, taken: int, now: float) -> float:
        while self._next_entry <= now:
            self._enter_next()
        return self.arrivals[taken][0] if taken < len(self.arrivals) else math.inf

    def _enter_next(self) -> None:
        exchange, step = self._waiting[0]
        number = self._num_entered[exchange]
        self._enter(self._next_entry, step, exchange, number)
        if number + 1 < len(self._pieces[exchange]):
            self._num_entered[exchange] = number + 1
        else:
            self._num_entered[exchange] = 0
            heapq.heappop(self._waiting)
        self._find_next_entry()

    def _find_next_entry(self) -> None:
        if not self._waiting:
            self._next_entry = math.inf
        elif len(self.arrivals) < self._credit:
            self._next_entry = self._last_ready
        else:
            room = self.arrivals[-self._credit][0]
            self._next_entry = room if room > self._last_ready else self._last_ready


def make_lanes(network: Network, plan: Plan, pieces: list[tuple[Piece, ...]]) -> Lanes:
    """Makes empty lanes for a call; with one worker they cost nothing."""
    if network.workers == 1:
        return InSequence(Network(network.engine, workers=1), pieces, credit=None)
    kind = ByUrgency if plan.by_urgency else InSequence
    return kind(network, pieces, plan.credit)
