"""Plans from a few settings, and a search for the best settings: where the planner begins.

A plan of this family defers the dW of the first k layers, exchanges gradients as they become
ready or by priority, joins small ones and splits large ones. Where it may, it carries those of
some layers in a row to the next call::

    carried (2, 5)   F0 F1 F2 F3 F4 F5   in the call: 0, 1 and 5, beside the dW that are put off
                           |------|      at the begin of the next one: 2, 3 and 4, beside F0 and F1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from ooodist.planner.data_parallel.exchanges import (
    arrange,
    layers_by_need,
    most_urgent_first,
    parts_of,
    ready_order,
)
from ooodist.planner.data_parallel.named import priority_sequence
from ooodist.planner.data_parallel.orders import first_k_order, movable_layers
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.planner.rows import travels_as_rows

BUCKET_BYTES = (0, *(1 << exponent for exponent in range(16, 31, 2)))
CHUNK_BYTES = (None, 1 << 26, 1 << 24, 1 << 23, 1 << 22, 1 << 21, 1 << 20)
LEAST_GAIN = 1e-4  # relative gain of the score for which a setting is changed
MOST_K = 32  # how many values of k, and limits of what is carried, are tried at most
MOST_TOGETHER = 8  # how many of each are tried at most with all of the others
LEAST_HALVED = 1 / 64  # of the average gradient: smaller ones only cost more exchanges


@dataclass(frozen=True)
class Settings:
    """The settings of a plan of the family.

    Attributes:
        k: as in reverse first-k.
        by_priority: exchanges go in the order of strict priority; else in the order in which
            gradients become ready.
        bucket_bytes: gradients that become ready one after the other share a bucket up to this.
        piece_bytes: size of chunks, or of the engine's pieces if it picks by urgency; None: no
            splitting.
        credit: exchanges in flight.
        carried: from which to before which layer, in forward order, exchanges are carried. A bucket
            is carried if all of it is within.
        halves: of those that travel alone, and are not small, only the second half is carried.
    """

    k: int
    by_priority: bool
    bucket_bytes: int
    piece_bytes: int | None
    credit: int | None
    carried: tuple[int, int] = (0, 0)
    halves: bool = False


class Family:
    """The plans of one model and network.

    Args:
        simulator: a simulator of the step's costs and network.
        credits: allowed credits.
        partitions: allowed sizes of pieces, if the engine picks by urgency.
        carrying: whether exchanges may be carried.
    """

    def __init__(
        self,
        simulator: Simulator,
        credits: Sequence[int | None],
        partitions: Sequence[int],
        *,
        carrying: bool = False,
    ) -> None:
        costs, network = simulator.costs, simulator.network
        self._costs = costs
        self._network = network
        self._ks = _some_up_to(len(movable_layers(costs)))
        self._layers = layers_by_need(costs)
        self._weights = {weight.name: weight for weight in costs.weights}
        num_bytes = [weight.num_bytes for weight in costs.weights]
        self._least_halved = LEAST_HALVED * sum(num_bytes) / max(1, len(num_bytes))
        self._rows = {weight.name for weight in costs.weights if travels_as_rows(weight)}
        self._limits: list[int] = []
        self._together: list[tuple[int, tuple[int, int]]] = []
        if carrying:
            self._limits = _some_up_to(len(self._layers))
            some_limits = _some_up_to(len(self._layers), MOST_TOGETHER)
            some_ks = _some_up_to(self._ks[-1], MOST_TOGETHER)
            self._together = list(product(some_ks, combinations(some_limits, 2)))
        self._pieces: Sequence[int | None] = partitions if network.by_urgency else CHUNK_BYTES
        self._credits = credits
        self._simulator = simulator
        self._orders: dict[int, tuple[str, ...]] = {}
        self._exchanges_of: dict[Settings, tuple[PlannedExchange, ...]] = {}

    def starts(self) -> list[Settings]:
        """Settings to begin with: as gradients become ready, and by priority."""
        return [
            Settings(0, by_priority, 0, self._pieces[0], self._credits[-1])
            for by_priority in (False, True)
        ]

    def all_in_halves(self) -> list[Settings]:
        """Settings by which the second half of each gradient is carried, one for each credit.

        Source: Zhang et al., "DeAR: accelerating distributed deep learning with fine-grained
        all-reduce pipelining", ICDCS 2023.
        """
        first, carried = self.starts()[0], (0, len(self._layers))
        return [
            replace(first, credit=credit, carried=carried, halves=True) for credit in self._credits
        ]

    def plan(self, settings: Settings, steps_per_execution: int) -> Plan:
        """Makes the plan that the settings describe."""
        by_urgency = self._network.by_urgency
        base = replace(settings, carried=(0, 0), halves=False)
        if base not in self._exchanges_of:
            self._exchanges_of[base] = self._exchanges(base)
        return Plan(
            name="planned",
            order=self._order(settings.k),
            exchanges=self._carrying(self._exchanges_of[base], settings),
            credit=settings.credit,
            by_urgency=by_urgency,
            partition_bytes=settings.piece_bytes if by_urgency else None,
            steps_per_execution=steps_per_execution,
            engine=self._network.engine,
            workers=self._network.workers,
        )

    def improve(
        self, settings: Settings, steps_per_execution: int, score: Callable[[Plan], float]
    ) -> Settings:
        """Changes one setting at a time while the score improves (less is better)."""
        best = score(self.plan(settings, steps_per_execution))
        tried = {settings: best}
        improved = True
        while improved:
            improved = False
            for field in range(len(self._varied(settings))):
                for other in self._varied(settings)[field]:
                    if other not in tried:
                        tried[other] = score(self.plan(other, steps_per_execution))
                    value = tried[other]
                    if value < best * (1 - LEAST_GAIN):
                        settings, best, improved = other, value, True
        return settings

    def _varied(self, settings: Settings) -> list[list[Settings]]:
        """Varies each setting: for each, the settings with another value of it."""
        varied = [
            [replace(settings, k=k) for k in self._ks],
            [replace(settings, by_priority=by_priority) for by_priority in (False, True)],
            [replace(settings, bucket_bytes=size) for size in BUCKET_BYTES],
            [replace(settings, piece_bytes=size) for size in self._pieces],
            [replace(settings, credit=credit) for credit in self._credits],
        ]
        if self._limits:
            first, end = settings.carried
            varied += [
                [replace(settings, carried=(other, end)) for other in self._limits if other <= end],
                [
                    replace(settings, carried=(first, other))
                    for other in self._limits
                    if other >= first
                ],
                # Which layers are best carried depends on which dW are put off.
                [replace(settings, k=k, carried=pair) for k, pair in self._together],
                [replace(settings, halves=halves) for halves in (False, True)],
            ]
        return varied

    def _carrying(
        self, exchanges: tuple[PlannedExchange, ...], settings: Settings
    ) -> tuple[PlannedExchange, ...]:
        """The exchanges, those of some layers carried.

        These change places among each other, to go in the order of need.
        """
        layers = self._layers[slice(*settings.carried)]
        names = {name for layer in layers for name in layer} - self._rows
        if not names:
            return exchanges
        if settings.halves:
            exchanges = tuple(
                half
                for e in exchanges
                for half in (self._halves(e) if names.issuperset(e.weights) else [e])
            )
        places = [
            place
            for place, e in enumerate(exchanges)
            if names.issuperset(e.weights) and (not settings.halves or 2 * e.part >= e.parts - 1)
        ]
        urgent_first = most_urgent_first(self._costs, [exchanges[place] for place in places])
        changed = list(exchanges)
        for place, exchange in zip(places, urgent_first, strict=True):
            changed[place] = replace(exchange, carried=True)
        return tuple(changed)

    def _halves(self, exchange: PlannedExchange) -> list[PlannedExchange]:
        """Two chunks of a gradient that travels alone and whole, and is not small."""
        weight = self._weights[exchange.weights[0]]
        is_whole = len(exchange.weights) == exchange.parts == 1
        if is_whole and weight.num_bytes >= self._least_halved:
            return parts_of(weight, 2)
        return [exchange]

    def _order(self, k: int) -> tuple[str, ...]:
        if k not in self._orders:
            self._orders[k] = first_k_order(self._costs, k)
        return self._orders[k]

    def _exchanges(self, settings: Settings) -> tuple[PlannedExchange, ...]:
        costs, network = self._costs, self._network
        order = self._order(settings.k)
        exchanges = arrange(
            costs,
            ready_order(costs, order),
            bucket_bytes=settings.bucket_bytes,
            chunk_bytes=None if network.by_urgency else settings.piece_bytes,
        )
        if not settings.by_priority:
            return exchanges
        if network.by_urgency:
            return most_urgent_first(costs, exchanges)
        return priority_sequence(self._simulator, order, exchanges, settings.credit)


def _some_up_to(most: int, most_values: int = MOST_K) -> list[int]:
    """Numbers from 0 to ``most``: all, or some at equal distances."""
    count = min(most, most_values)
    return sorted({most * i // count for i in range(count + 1)}) if count else [0]
