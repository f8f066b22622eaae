"""Tries plans in turns during real training and keeps the fastest.

All plans compute the same numbers, so no step is lost by trying one::

    calls     | default     | planned     | planned     | default     | ... | the fastest ...
    measured  | - x x x x x | - x x x x x | - x x x x x | - x x x x x | ... |

The first call of a turn is not measured, as it may be traced. Each rank measures, and the slowest
counts, so that all decide alike. Each turn is compared with the default's in the same round, as the
speed of a machine changes from second to second: two turns of the same plan differ by 10 % where
other programs share the cores. So rounds go on until it is clear whether a plan is faster.
"""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooodist.engines.base import Engine
from ooodist.planner.data_parallel.plan import Plan
from ooodist.step.execution import Batch, Run

logger = logging.getLogger("ooodist")

LAUNCHES = 6  # calls per turn
ROUNDS = 4  # at least
MOST_ROUNDS = 12
BEHIND = 0.5  # how much slower, relatively, a candidate may be in one turn, or in two by half of it
ERRORS = 2.0  # standard errors from which on a difference is clear
AS_PREDICTED = 0.05  # a smaller relative difference teaches nothing new
GAIN = 0.01  # a smaller relative gain does not justify another order of the work


@dataclass(frozen=True)
class Candidate:
    """A way to train.

    Attributes:
        name: shown in logs.
        run: trains on any number of batches and returns the logs.
        steps: steps per call.
        plan: the plan that it carries out; None if unknown.
        predicted: seconds per step; None if unknown.
    """

    name: str
    run: Run
    steps: int = 1
    plan: Plan | None = None
    predicted: float | None = None


class Trial:
    """Runs calls of each candidate in turn, on all ranks together.

    Args:
        engine: what the ranks communicate with.
        candidates: the first is the default, which wins unless another is faster by more than
            ``GAIN``, and by more than a standard error.

    Attributes:
        steps: steps per call of the trial; a candidate with fewer per call runs several of its own.
        fastest: the winner; None until it is known.
        seconds: seconds per step of each candidate, after a round: the default's median, and what
            the others take in proportion to it.
    """

    def __init__(self, engine: Engine, candidates: Sequence[Candidate]) -> None:
        self._engine = engine
        self._candidates = list(candidates)
        self.steps = max(candidate.steps for candidate in candidates)
        self.fastest: Candidate | None = None
        self.seconds: list[float] = []
        # Of each candidate, per turn: the logarithm of its seconds per step over the default's.
        self._ratios: list[list[float]] = [[] for _ in candidates]
        self._default_seconds: list[float] = []
        self._begin_round(range(len(self._candidates)))

    def __call__(self, batches: Sequence[Batch]) -> dict[str, Any]:
        """Trains on a call's batches, ``steps`` steps, with the candidate whose turn it is."""
        at, is_measured = self._turns.popleft()
        logs, seconds = timed(self._candidates[at].run, batches)
        if is_measured:
            self._measured[at].append(seconds / self.steps)
        if not self._turns:
            self._end_round()
        return logs

    def _begin_round(self, candidates: Sequence[int]) -> None:
        # Back and forth, so that a machine that becomes slower favors none.
        backwards = len(self._default_seconds) % 2 == 1
        self._measured: dict[int, list[float]] = {at: [] for at in candidates}
        self._turns = deque(
            (at, number > 0)
            for at in (reversed(candidates) if backwards else candidates)
            for number in range(LAUNCHES)
        )

    def _end_round(self) -> None:
        own = np.array([statistics.median(seconds) for seconds in self._measured.values()])
        took = self._engine.all_reduce(own, "max").tolist()
        self._default_seconds.append(took[0])
        for at, seconds in zip(self._measured, took, strict=True):
            self._ratios[at].append(math.log(seconds / took[0]))
        default = statistics.median(self._default_seconds)
        self.seconds = [default * self._ratio(at) for at in range(len(self._candidates))]
        others = [at for at in self._measured if at and self._may_be_faster(at)]
        if others and self._is_open(others):
            self._begin_round([0, *others])  # with the default, measured under the same conditions
        else:
            self._decide(others)

    def _may_be_faster(self, at: int) -> bool:
        """Whether the candidate may yet turn out to be faster than the default."""
        turns = len(self._ratios[at])
        if turns < ROUNDS:
            return self._ratio(at) <= 1 + BEHIND / turns
        return self._ratio(at, -ERRORS) < 1 - GAIN

    def _ratio(self, at: int, errors: float = 0) -> float:
        """The candidate's seconds over the default's, with so many standard errors added."""
        ratios = self._ratios[at]
        error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if errors else 0.0
        return math.exp(statistics.mean(ratios) + errors * error)

    def _is_open(self, others: Iterable[int]) -> bool:
        """Whether another round may tell more about these candidates."""
        rounds = len(self._default_seconds)
        if rounds < ROUNDS:
            return True
        return rounds < MOST_ROUNDS and any(self._ratio(at, ERRORS) >= 1 - GAIN for at in others)

    def _decide(self, others: Iterable[int]) -> None:
        faster = [at for at in others if self._ratio(at, errors=1) < 1 - GAIN]
        self.fastest = self._candidates[min(faster, key=self.seconds.__getitem__, default=0)]
        logger.info(
            "tried in training: %s; %s stays",
            ", ".join(map(_result, self._candidates, self.seconds)),
            self.fastest.name,
        )


def is_surprise(candidates: Sequence[Candidate], seconds: Sequence[float]) -> bool:
    """Whether a candidate's seconds per step differ from the prediction."""
    return any(
        each.predicted is not None and abs(took / each.predicted - 1) > AS_PREDICTED
        for each, took in zip(candidates, seconds, strict=True)
    )


def timed(run: Run, batches: Sequence[Batch]) -> tuple[dict[str, Any], float]:
    """Runs on the batches; returns the logs, and the seconds until they are available."""
    started = time.perf_counter()
    logs = run(batches)
    for value in itertools.islice(logs.values(), 1):
        np.asarray(value)
    return logs, time.perf_counter() - started


def _result(candidate: Candidate, measured: float) -> str:
    text = f"{candidate.name} {measured * 1e3:.1f} ms a step"
    if candidate.predicted is None:
        return text
    return f"{text} (predicted {candidate.predicted * 1e3:.1f})"
