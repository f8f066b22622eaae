"""What a selection costs in a step, with all that goes on beside the computation.

On one worker a step takes what its units take. With several, an unselected tensor saves its
exchange as well, but only as far as that could not be hidden: so a selection is weighed by
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

# (what can be selected, importance, seconds of a step, forced items) -> items
Solver = Callable[[Selectable, Sequence[float], float, Collection[int]], frozenset[int]]

# Shares of its exchange that an item is charged with when it is weighed against others. Which one
# leads to the best selection depends on how much of all exchanges is hidden: all are tried.
CHARGED = (0.0, 0.25, 0.5, 0.75, 1.0)


class CostModel(Protocol):
    """Costs of selections, and the best within a budget."""

    @property
    def choice(self) -> Selectable:
        """What can be selected."""

    def seconds(self, selected: Collection[int]) -> float:
        """Of a step with these items."""

    def select(
        self, solver: Solver, importance: Sequence[float], budget: float, forced: Collection[int]
    ) -> frozenset[int]:
        """The items that matter most in a step of at most so many seconds, with those forced.

        Raises ValueError if the forced ones alone take longer.
        """


@dataclass(frozen=True)
class OneWorker:
    """A step takes what its units take.

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
    """Steps are simulated, with the exchange.

    Attributes:
        costs: of the full step, without the exchange.
        network: of the engine.
        bucket_bytes: small gradients travel together up to this size.
        credit: exchanges in flight; None: any number.
        steps_per_execution: over which exchanges may overlap the next forward pass.
        waiting: by which what a step waits for its exchange is longer than in the simulation,
            which does not know the plan that a selection will have, nor an engine's own settings.
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
        """Of each item, if nothing of it is hidden."""
        size = {weight.name: weight.num_bytes for weight in self.costs.weights}
        network = self.network
        a_byte = max(network.seconds_per_byte, network.pull_seconds_per_byte)
        a_byte += network.cpu_seconds_per_byte
        return [sum(size[name] for name in i.weights) * a_byte for i in self.choice.items]

    def seconds(self, selected: Collection[int]) -> float:
        computing = self.computing(selected)
        return computing + self.waiting * (self.simulated(selected) - computing)

    def computing(self, selected: Collection[int]) -> float:
        """Seconds of a step without its exchange."""
        launches = self.costs.launch_seconds * (1 - 1 / self.steps_per_execution)
        return self.choice.seconds(selected) - launches

    def simulated(self, selected: Collection[int]) -> float:
        """Seconds of a step in simulation."""
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
        """The best selection if items are weighed with this share of their exchange."""
        items = tuple(
            replace(item, seconds=item.seconds + charged * exchange)
            for item, exchange in zip(self.choice.items, self._exchange_seconds, strict=True)
        )
        choice = replace(self.choice, items=items)
        least = choice.seconds(forced) * (1 + 1e-9)

        def propose(virtual: float) -> frozenset[int]:
            # Items that cost nothing here (their dW comes with a dX) may have a costly exchange.
            # What is forced fits without them: that was checked.
            if virtual <= least:
                return always_selected(choice, forced)
            return solver(choice, importance, virtual, forced)

        return select_planned(propose, self.seconds, budget, least=least, most=choice.full_seconds)
