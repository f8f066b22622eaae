"""Tries plans in turns during real training and keeps the fastest.

All plans compute the same numbers, so no step is lost by trying one::

    calls     | default     | planned     | default     | planned     | ... | the fastest ...
    measured  | - x x x x x | - x x x x x | - x x x x x | - x x x x x | ... |

The first call of a turn is not measured, as it may be traced. Each rank measures, and the slowest
counts, so that all decide alike. A plan that is far behind after a round gets no more turns.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooodist.engines.base import Engine
from ooodist.planner.data_parallel.plan import Plan
from ooodist.step.launch import Batch, Run

logger = logging.getLogger("ooodist")

LAUNCHES = 6  # calls per turn
ROUNDS = 4
BEHIND = 0.1  # how much slower than the fastest, relatively, a candidate that goes on may be
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
            ``GAIN``.

    Attributes:
        steps: steps per call of the trial; a candidate with fewer per call runs several of its own.
        fastest: the winner; None until it is known.
        seconds: seconds per step of each candidate, after a round.
    """

    def __init__(self, engine: Engine, candidates: Sequence[Candidate]) -> None:
        self._engine = engine
        self._candidates = list(candidates)
        self.steps = max(candidate.steps for candidate in candidates)
        self.fastest: Candidate | None = None
        self.seconds: list[float] = []
        self._measured: list[list[float]] = [[] for _ in candidates]
        self._rounds = 0
        self._turns: deque[tuple[int, bool]] = deque()
        self._begin_round(range(len(candidates)))

    def __call__(self, batches: Sequence[Batch]) -> dict[str, Any]:
        """Trains on a call's batches, ``steps`` steps, with the candidate whose turn it is."""
        at, is_measured = self._turns.popleft()
        logs, seconds = timed(self._candidates[at].run, batches)
        if is_measured:
            self._measured[at].append(seconds / self.steps)
        if not self._turns:
            self._end_round()
        return logs

    def _begin_round(self, candidates: Iterable[int]) -> None:
        self._rounds += 1
        self._turns.extend((at, number > 0) for at in candidates for number in range(LAUNCHES))

    def _end_round(self) -> None:
        own = np.array([statistics.median(seconds) for seconds in self._measured])
        self.seconds = self._engine.all_reduce(own, "max").tolist()
        slowest = (1 + BEHIND) * min(self.seconds)
        others = [at for at, took in enumerate(self.seconds) if at and took <= slowest]
        if others and self._rounds < ROUNDS:
            self._begin_round([0, *others])  # with the default, measured under the same conditions
        else:
            self._decide()

    def _decide(self) -> None:
        at = int(np.argmin(self.seconds))
        if self.seconds[at] >= (1 - GAIN) * self.seconds[0]:
            at = 0
        self.fastest = self._candidates[at]
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
