"""Plans from a few settings, and a search for the best settings: where the planner begins.

A plan of this family defers the dW of the first k layers, exchanges gradients as they become
ready or by priority, joins small ones and splits large ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ooodist.planner.data_parallel.exchanges import arrange, most_urgent_first, ready_order
from ooodist.planner.data_parallel.named import priority_sequence
from ooodist.planner.data_parallel.orders import first_k_order, movable_layers
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange
from ooodist.planner.data_parallel.simulate import Simulator

BUCKET_BYTES = (0, *(1 << exponent for exponent in range(16, 31, 2)))
CHUNK_BYTES = (None, 1 << 26, 1 << 24, 1 << 23, 1 << 22, 1 << 21, 1 << 20)
LEAST_GAIN = 1e-4  # relative gain of the score for which a setting is changed
MOST_K = 32  # how many values of k are tried at most, at equal distances


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
    """

    k: int
    by_priority: bool
    bucket_bytes: int
    piece_bytes: int | None
    credit: int | None


class Family:
    """The plans of one model and network.

    Args:
        simulator: a simulator of the step's costs and network.
        credits: allowed credits.
        partitions: allowed sizes of pieces, if the engine picks by urgency.
    """

    def __init__(
        self,
        simulator: Simulator,
        credits: Sequence[int | None],
        partitions: Sequence[int],
    ) -> None:
        costs, network = simulator.costs, simulator.network
        self._costs = costs
        self._network = network
        layers = len(movable_layers(costs))
        values = min(layers, MOST_K)
        self._ks = sorted({layers * i // values for i in range(values + 1)}) if values else [0]
        self._pieces: Sequence[int | None] = partitions if network.by_urgency else CHUNK_BYTES
        self._credits = credits
        self._simulator = simulator
        self._orders: dict[int, tuple[str, ...]] = {}
        self._exchanges_of: dict[Settings, tuple[PlannedExchange, ...]] = {}

    def starts(self) -> list[Settings]:
        """Returns settings to begin with: as gradients become ready, and by priority."""
        return [
            Settings(0, by_priority, 0, self._pieces[0], self._credits[-1])
            for by_priority in (False, True)
        ]

    def plan(self, settings: Settings, steps_per_execution: int) -> Plan:
        """Makes the plan that the settings describe."""
        by_urgency = self._network.by_urgency
        if settings not in self._exchanges_of:
            self._exchanges_of[settings] = self._exchanges(settings)
        return Plan(
            name="planned",
            order=self._order(settings.k),
            exchanges=self._exchanges_of[settings],
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
        """Returns, for each setting, the settings with another value of it."""
        return [
            [replace(settings, k=k) for k in self._ks],
            [replace(settings, by_priority=by_priority) for by_priority in (False, True)],
            [replace(settings, bucket_bytes=size) for size in BUCKET_BYTES],
            [replace(settings, piece_bytes=size) for size in self._pieces],
            [replace(settings, credit=credit) for credit in self._credits],
        ]

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
        return priority_sequence(costs, network, order, exchanges, settings.credit, self._simulator)
