"""Cost models: seconds of a step for a selection, with all that runs beside the computation.

On one worker a step takes as long as its units. With several, an unselected tensor also saves its
exchange, but only the part that could not be hidden: so the cost of a selection is found by
simulating a step with a plan for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from ooodist.elastic.selection.items import Selectable
from ooodist.elastic.selection.select import always_selected, select_planned
from ooodist.elastic.timing import reduced, selectable_of
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.exchanges import arrange, ready_order
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.simulate import Simulator

# (what can be selected, importance, budget in seconds per step, forced items) -> items
Solver = Callable[[Selectable, Sequence[float], float, Collection[int]], frozenset[int]]

# Share of its exchange that an item is charged for when items are compared. Which share leads to
# the best selection depends on how much of all exchanges is hidden: all are tried.
CHARGED = (0.0, 0.25, 0.5, 0.75, 1.0)


class CostModel(Protocol):
    """Predicts the seconds of selections, and finds the best one within a budget."""

    @property
    def choice(self) -> Selectable:
        """The items that can be selected, with their costs."""

    def seconds(self, selected: Collection[int]) -> float:
        """The seconds of a step that trains these items."""

    def select(
        self, solver: Solver, importance: Sequence[float], budget: float, forced: Collection[int]
    ) -> frozenset[int]:
        """The most important items, forced ones included, of a step within the budget.

        The budget is in seconds. Raises ValueError if the forced items alone take longer.
        """


@dataclass(frozen=True)
class OneWorker:
    """The cost model of one worker: a step takes as long as its units.

    Attributes:
        choice: what can be selected, with its costs.
    """

    choice: Selectable

    def seconds(self, selected: Collection[int]) -> float:
        return self.choice.seconds(selected)

    def select(
        self, solver: Solver, importance: Sequence[float], budget: float, forced: Collection[int]
    ) -> frozenset[int]:
        return solver(self.choice, importance, budget, forced)


@dataclass(frozen=True)
class SeveralWorkers:
    """The cost model of several workers: steps are simulated with their exchange.

    Attributes:
        costs: costs of the full step, without the exchange.
        network: costs of exchanges with the engine.
        bucket_bytes: small gradients share a bucket up to this size.
        credit: exchanges in flight; None: any number.
        steps_per_execution: steps of a call, within which exchanges may overlap the next forward
            pass.
        waiting: factor from a step's simulated wait for its exchange to the real one, as the
            simulation knows neither the selection's later plan nor an engine's own settings.
    """

    costs: StepCosts
    network: Network
    bucket_bytes: int
    credit: int | None
    steps_per_execution: int
    waiting: float = 1.0

    @cached_property
    def choice(self) -> Selectable:
        return selectable_of(self.costs)

    @cached_property
    def _exchange_seconds(self) -> list[float]:
        """Seconds of each item's exchange if none of it is hidden."""
        size = {weight.name: weight.num_bytes for weight in self.costs.weights}
        network = self.network
        a_byte = max(network.seconds_per_byte, network.pull_seconds_per_byte)
        a_byte += network.cpu_seconds_per_byte
        return [sum(size[name] for name in i.weights) * a_byte for i in self.choice.items]

    def seconds(self, selected: Collection[int]) -> float:
        computing = self.computing(selected)
        return computing + self.waiting * (self.simulated(selected) - computing)

    def computing(self, selected: Collection[int]) -> float:
        """The seconds of a step without its exchange."""
        launches = self.costs.launch_seconds * (1 - 1 / self.steps_per_execution)
        return self.choice.seconds(selected) - launches

    def simulated(self, selected: Collection[int]) -> float:
        """The seconds of a step in simulation, with its exchange."""
        costs = reduced(self.costs, self.choice.weights(selected))
        weights = ready_order(costs, None)
        plan = Plan(
            name="baseline",
            order=None,
            exchanges=arrange(costs, weights, bucket_bytes=self.bucket_bytes),
            credit=self.credit,
            by_urgency=self.network.by_urgency,
            steps_per_execution=self.steps_per_execution,
        )
        return Simulator(costs, self.network).step_seconds(plan)

    def select(
        self, solver: Solver, importance: Sequence[float], budget: float, forced: Collection[int]
    ) -> frozenset[int]:
        found = [
            self._select(charged, solver, importance, budget, forced)
            for charged in CHARGED[: None if self.network.workers > 1 else 1]
        ]
        return max(found, key=lambda items: sum(importance[number] for number in items))

    def _select(
        self,
        charged: float,
        solver: Solver,
        importance: Sequence[float],
        budget: float,
        forced: Collection[int],
    ) -> frozenset[int]:
        """The best selection if items are charged for this share of their exchange."""
        items = tuple(
            replace(item, seconds=item.seconds + charged * exchange)
            for item, exchange in zip(self.choice.items, self._exchange_seconds, strict=True)
        )
        choice = replace(self.choice, items=items)
        least = choice.seconds(forced) * (1 + 1e-9)

        def propose(virtual: float) -> frozenset[int]:
            # Items that cost nothing here (their dW comes with a dX) may have a costly exchange.
            # The forced ones fit without them, as checked before.
            if virtual <= least:
                return always_selected(choice, forced)
            return solver(choice, importance, virtual, forced)

        return select_planned(propose, self.seconds, budget, least=least, most=choice.full_seconds)
