"""The cost model of a pipeline: seconds of a step for a selection, and the best within a budget.

With d the first stage that trains, stages before it only run forward, and each stage after it
computes its whole I::

    rank 0   F  F  F                              forward only
    rank 1      F  F  F     W  W  W               d: no input gradient, all is W
    rank 2         F  F  F  I W  I W  I W

So for a given d the ranks' selections are independent: rank r has ``budget - F - I`` seconds for
its W, the bubble included. A dW that fits into a bubble costs nothing. How much of a bubble cannot
be filled, because W must wait for I, is found by simulation, and the budget is lowered until the
step meets it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ooodist.elastic.cost_model import Solver
from ooodist.elastic.selection.items import Item, Selectable
from ooodist.elastic.selection.select import select_planned
from ooodist.elastic.stage_units import stage_of_unit
from ooodist.elastic.timing import needed_until, selectable_of
from ooodist.planner.costs import StepCosts
from ooodist.planner.pipeline.actions import Schedule, trained_from
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.planner.pipeline.simulate import simulate_pipeline


@dataclass(frozen=True)
class PipelineCostModel:
    """Simulates steps with the schedule of full training, less the actions that a selection saves.

    Attributes:
        units: unit costs of a micro-batch, with the names of stage_units.py.
        costs: measured costs of the stages when all is trained.
        schedule: the schedule of full training.
        replanned: (costs of the stages, first stage that trains) -> the schedule made for them.
    """

    units: StepCosts
    costs: PipelineCosts
    schedule: Schedule
    replanned: Callable[[PipelineCosts, int], Schedule]

    @cached_property
    def choice(self) -> Selectable:
        """The items, with seconds per micro-batch; a step's updates are divided among these."""
        number = self.schedule.microbatches
        weights = tuple(
            replace(weight, update_seconds=weight.update_seconds / number)
            for weight in self.units.weights
        )
        return selectable_of(replace(self.units, weights=weights))

    def first_trained(self, selected: Collection[int]) -> int:
        """The first stage that trains."""
        return min(self._first_stage[number] for number in selected)

    def masked(self, selected: Collection[int]) -> PipelineCosts:
        """The stages' costs; stages that do not train keep I as if they did."""
        first, own = self.first_trained(selected), self._weight_seconds(selected)
        updated, all_updated = [0.0] * self.schedule.ranks, [0.0] * self.schedule.ranks
        exchanged, all_exchanged = [0] * self.schedule.stages, [0] * self.schedule.stages
        for number, seconds in enumerate(self._update_seconds):
            rank = self.schedule.rank_of[self._first_stage[number]]
            all_updated[rank] += seconds
            updated[rank] += seconds if number in selected else 0.0
        for number, num_bytes in enumerate(self._gradient_bytes):
            stage = self._first_stage[number]
            all_exchanged[stage] += num_bytes
            exchanged[stage] += num_bytes if number in selected else 0
        stages = []
        for number, cost in enumerate(self.costs.stages):
            rank = self.schedule.rank_of[number]
            stages.append(
                replace(
                    cost,
                    input_gradient=0.0 if number == first else cost.input_gradient,
                    weight_gradient=own.get(number, 0.0) * self._factor(number, first),
                    update=cost.update * updated[rank] / (all_updated[rank] or 1.0),
                    exchange=cost.exchange * exchanged[number] / (all_exchanged[number] or 1),
                )
            )
        return replace(self.costs, stages=tuple(stages))

    def seconds(self, selected: Collection[int]) -> float:
        schedule = trained_from(self.schedule, self.first_trained(selected))
        return simulate_pipeline(schedule, self.masked(selected)).step_seconds

    def select(
        self, solver: Solver, importance: Sequence[float], budget: float, forced: Collection[int]
    ) -> frozenset[int]:
        """The best selection over all choices of the first stage that trains.

        A schedule made for the selection is faster than what is left of the full one. Finding it
        takes long, so that is done for the best selection only, and the time that it saves is added
        to the budget of a second one.

        Raises ValueError if the forced items alone take longer.
        """
        if self.seconds(forced) > budget:
            raise ValueError("the forced items do not fit")
        best = self._select(solver, importance, budget, forced)
        faster = self._replanned_seconds(best) / self.seconds(best)
        if faster < 1:
            better = self._select(solver, importance, budget / faster, forced)
            if self._replanned_seconds(better) <= budget:
                return better
        return best

    def _replanned_seconds(self, selected: Collection[int]) -> float:
        costs = self.masked(selected)
        schedule = self.replanned(costs, self.first_trained(selected))
        return simulate_pipeline(schedule, costs).step_seconds

    def _select(
        self, solver: Solver, importance: Sequence[float], budget: float, forced: Collection[int]
    ) -> frozenset[int]:
        found = [frozenset(forced)]
        deepest = self.first_trained(forced)
        for first in sorted({stage for stage in self._first_stage if stage <= deepest}):
            ranks = [self._of_rank(rank, first) for rank in range(self.schedule.ranks)]

            def propose(virtual: float, ranks: Sequence[_OfRank] = ranks) -> frozenset[int]:
                chosen = (own.select(solver, importance, virtual, forced) for own in ranks)
                return frozenset(forced).union(*chosen)

            found.append(select_planned(propose, self.seconds, budget, least=0.0, most=budget))
        return max(found, key=lambda items: sum(importance[number] for number in items))

    def _of_rank(self, rank: int, first: int) -> _OfRank:
        """What rank ``rank`` can select if stages from ``first`` on train."""
        micro = self.schedule.microbatches
        busy = 0.0
        for number, cost in enumerate(self.costs.stages):
            if self.schedule.rank_of[number] == rank:
                backward = cost.input_gradient if number > first else 0.0
                busy += micro * (cost.forward + backward)
        # A selection is never empty: NOTHING is always part of it.
        numbers, items, path = [-1], [NOTHING], dict[str, float]()
        for number, item in enumerate(self.choice.items):
            stage = self._first_stage[number]
            if stage < first or self.schedule.rank_of[stage] != rank:
                continue
            # The units needed that I does not run anyway: those inside the first stage, and of
            # branches that lead to nothing else.
            own = frozenset(
                name
                for name in item.needs
                if stage_of_unit(name) == stage and not self._is_of_b(name, first)
            )
            factor = micro * self._factor(stage, first)
            numbers.append(number)
            items.append(Item(item.name, item.weights, item.seconds * factor, own))
            path |= {name: self.choice.path_seconds[name] * factor for name in sorted(own)}
        return _OfRank(numbers, Selectable(tuple(items), path, busy))

    # Which units are part of I, and the seconds of W

    @property
    def _all(self) -> range:
        return range(len(self.choice.items))

    @cached_property
    def _closures(self) -> list[frozenset[str]]:
        """For each item, the units that must run for it, its own included."""
        until = needed_until(self.units.backward)
        closures = [until[unit.name] for unit in self.units.backward if unit.weights]
        return closures + [frozenset()] * (len(self.choice.items) - len(closures))

    @cached_property
    def _first_stage(self) -> list[int]:
        """For each item, the first stage that computes something for it."""
        last = self.schedule.stages - 1
        return [
            min((stage_of_unit(name) for name in closure), default=last)
            for closure in self._closures
        ]

    @cached_property
    def _reach(self) -> dict[str, int]:
        """For each unit, the first stage of an item that needs it."""
        reach: dict[str, int] = {}
        for stage, closure in zip(self._first_stage, self._closures, strict=True):
            for name in closure:
                reach[name] = min(stage, reach.get(name, stage))
        return reach

    def _is_of_b(self, unit: str, first: int) -> bool:
        """Whether a unit makes a gradient that is sent, if ``first`` is the first that trains."""
        stage = stage_of_unit(unit)
        return self._kind[unit] == "dX" and self._reach[unit] < stage and stage > first

    @cached_property
    def _kind(self) -> dict[str, str]:
        return {unit.name: unit.kind for unit in self.units.backward}

    @cached_property
    def _update_seconds(self) -> list[float]:
        seconds = {weight.name: weight.update_seconds for weight in self.units.weights}
        return [sum(seconds[name] for name in item.weights) for item in self.choice.items]

    @cached_property
    def _gradient_bytes(self) -> list[int]:
        num_bytes = {weight.name: weight.num_bytes for weight in self.units.weights}
        return [sum(num_bytes[name] for name in item.weights) for item in self.choice.items]

    def _factor(self, stage: int, first: int) -> float:
        """How many times as long a stage's W takes as its units when they were measured."""
        cost, full = self.costs.stages[stage], self._full_seconds[stage]
        seconds, own = cost.weight_gradient, full.weight_gradient
        if stage == first:  # it sends no gradient: what was I is W
            seconds, own = seconds + cost.input_gradient, own + full.input_gradient
        return seconds / own if own else 1.0

    @cached_property
    def _full_seconds(self) -> list[StageCost]:
        """Seconds of I and W of each stage when all is trained, summed over its measured units."""
        weight = self._weight_seconds(self._all)
        total = [0.0] * self.schedule.stages
        for unit in self.units.backward:
            total[stage_of_unit(unit.name)] += unit.seconds
        return [
            StageCost(
                input_gradient=max(0.0, seconds - weight.get(stage, 0.0)),
                weight_gradient=weight.get(stage, 0.0),
            )
            for stage, seconds in enumerate(total)
        ]

    def _weight_seconds(self, selected: Collection[int]) -> dict[int, float]:
        """Seconds per micro-batch of each stage's W, summed over its measured units."""
        first = self.first_trained(selected)
        needed = frozenset[str]().union(*(self._closures[number] for number in selected))
        total: dict[int, float] = {}
        for unit in self.units.backward:
            if unit.name in needed and not self._is_of_b(unit.name, first):
                stage = stage_of_unit(unit.name)
                total[stage] = total.get(stage, 0.0) + unit.seconds
        return total


NOTHING = Item("nothing", (), 0.0, frozenset())


@dataclass(frozen=True)
class _OfRank:
    """The items that one rank can select.

    Attributes:
        numbers: indices of its items among all; the first is that of NOTHING.
        choice: these items, in seconds per step.
    """

    numbers: Sequence[int]
    choice: Selectable

    def select(
        self, solver: Solver, importance: Sequence[float], budget: float, forced: Collection[int]
    ) -> frozenset[int]:
        """Selects items, including the forced ones; only these if there is no time for more."""
        own = [0] + [place for place, number in enumerate(self.numbers) if number in forced]
        selected = frozenset(own)
        if self.choice.seconds(own) <= budget:
            values = [0.0, *(importance[number] for number in self.numbers[1:])]
            selected = solver(self.choice, values, budget, own)
        return frozenset(self.numbers[place] for place in selected if place)
