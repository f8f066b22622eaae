"""Reports the progress of a search to a listener, which may show it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.simulate import Simulator


@dataclass(frozen=True)
class SearchState:
    """The state of a search at one moment.

    Attributes:
        phase: what the search does, in a few words.
        simulated: number of plans simulated so far.
        share: approximate share of the search that is done, 0 to 1.
        best_seconds: seconds of a step with the best plan so far; infinite before the first.
        baseline_seconds: seconds of a step with the baseline; infinite before it was simulated.
    """

    phase: str
    simulated: int
    share: float
    best_seconds: float
    baseline_seconds: float


Progress: TypeAlias = Callable[[SearchState], None]
"""Called with the state after each simulated plan."""


class WatchedSimulator(Simulator):
    """A simulator that reports the progress of the search that uses it.

    Args:
        costs, network: as in Simulator.
        expected: approximate number of plans that the search will simulate.
        progress: called after each plan; None for nobody.

    Attributes:
        phase, best_seconds, baseline_seconds: as in :class:`SearchState`; set by the search.
        simulated: number of plans simulated so far.
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

    def seconds_by_steps(self, plan: Plan, numbers: Sequence[int]) -> dict[int, float]:
        seconds = super().seconds_by_steps(plan, numbers)
        self.simulated += 1
        if self._progress is not None:
            share = min(1.0, self.simulated / self._expected)
            self._progress(
                SearchState(
                    self.phase, self.simulated, share, self.best_seconds, self.baseline_seconds
                )
            )
        return seconds
