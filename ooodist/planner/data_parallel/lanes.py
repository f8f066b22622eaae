"""The network of the simulator: when exchanges enter it, and when they are complete.

An exchange passes two lanes, each of which serves one at a time, first come, first served
(see :class:`ooodist.planner.costs.Network`), so exchanges complete in the order in which they
enter. What decides when they enter, and in which order, is the plan::

    in sequence   1 2 3 4: each as soon as it is ready, those ahead of it have entered, and fewer
                  than `credit` exchanges are on their way
    by urgency    whenever fewer than `credit` pieces are on their way: the next piece of the
                  exchange that stands first in the plan, of those that are ready
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

# A piece that has passed the network, or that is sure to: when it is complete, when its bytes begin
# to move, the piece, the step and the exchange that it belongs to, and whether that is complete
# with it. (A plain tuple, because so many are made: a named one takes eight times as long.)
Arrival: TypeAlias = tuple[float, float, Piece, int, int, bool]


class Lanes(ABC):
    """The two lanes, and all that has entered them.

    Attributes:
        arrivals: in the order in which they enter, which is that in which they complete.
    """

    def __init__(self, network: Network, pieces: list[tuple[Piece, ...]]) -> None:
        self.arrivals: list[Arrival] = []
        self._pieces = pieces
        self._latency = network.latency
        self._push_free = 0.0
        self._pull_free = 0.0

    @abstractmethod
    def hand_over(self, step: int, exchanges: list[int], now: float) -> None:
        """These exchanges of a step have become ready; ``next_end`` is called at the same time.

        ``now`` never decreases.
        """

    @abstractmethod
    def next_end(self, taken: int, now: float) -> float:
        """When the arrival with the number ``taken`` is complete; infinite if there is none.

        Those before it must be complete by ``now``, and what is ready by now handed over.
        """

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
        super().__init__(network, pieces)
        self._credit = credit or sys.maxsize
        self._ends: list[float] = []  # of whole exchanges

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

    def next_end(self, taken: int, now: float) -> float:
        return self.arrivals[taken][0] if taken < len(self.arrivals) else math.inf


class ByUrgency(Lanes):
    """Whenever there is room, the most urgent piece of those that are ready enters.

    What becomes ready at the instant at which there is room competes for it.
    """

    def __init__(
        self, network: Network, pieces: list[tuple[Piece, ...]], credit: int | None
    ) -> None:
        super().__init__(network, pieces)
        self._credit = credit or sys.maxsize
        self._waiting: list[tuple[int, int]] = []  # heap of (exchange, step)
        self._num_entered = [0] * len(pieces)  # pieces of each exchange, of its earliest step
        self._last_ready = 0.0
        self._next_entry = math.inf  # if nothing more becomes ready before

    def hand_over(self, step: int, exchanges: list[int], now: float) -> None:
        while self._next_entry < now:
            self._enter_next()
        for exchange in exchanges:
            heapq.heappush(self._waiting, (exchange, step))
        self._last_ready = now
        self._find_next_entry()

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
    """Empty lanes for a launch; with one worker they cost nothing."""
    if network.workers == 1:
        return InSequence(Network(network.engine, workers=1), pieces, credit=None)
    kind = ByUrgency if plan.by_urgency else InSequence
    return kind(network, pieces, plan.credit)
