"""How far a search is: told to whoever listens, who may show it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.simulate import Simulator


@dataclass(frozen=True)
class SearchState:
    """A moment of a search.

    Attributes:
        phase: what it does, in a few words.
        simulated: plans so far.
        share: of the search that is done, about: 0 to 1.
        best_seconds: of a step with the best plan so far; infinite before the first.
        baseline_seconds: of a step with the baseline; infinite before it was simulated.
    """

    phase: str
    simulated: int
    share: float
    best_seconds: float
    baseline_seconds: float


Progress: TypeAlias = Callable[[SearchState], None]
"""Is called with the state after each simulated plan."""


class WatchedSimulator(Simulator):
    """A simulator that says how far the search is that uses it.

    Args:
        costs, network: as of a simulator.
        expected: plans that the search will simulate, about.
        progress: is told; None: nobody is.

    Attributes:
        phase, best_seconds, baseline_seconds: as of :class:`SearchState`; set by the search.
        simulated: plans so far.
    """

    def __init__(
        self, costs: StepCosts, network: Network, expected: int, progress: Progress | None
    ) -> None:
        super().__init__(costs, network)
        self.phase = ""
        self.simulated = 0
        self.best_seconds = math.inf
        self.baseline_seconds = math.inf
        self._expected = expected
        self._progress = progress

    def step_seconds(self, plan: Plan) -> float:
        seconds = super().step_seconds(plan)
        self.simulated += 1
        if self._progress is not None:
            share = min(1.0, self.simulated / self._expected)
            self._progress(
                SearchState(
                    self.phase, self.simulated, share, self.best_seconds, self.baseline_seconds
                )
            )
        return seconds
