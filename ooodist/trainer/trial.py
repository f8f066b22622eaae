"""Plans take turns in real training, and the fastest stays.

All plans compute the same numbers, so that no step is lost by trying one in earnest::

    launches  | default     | planned     | default     | planned     | ... | the fastest ...
    measured  | - x x x x x | - x x x x x | - x x x x x | - x x x x x | ... |

The first launch of a turn is not measured: it may be traced. Each rank measures, and the slowest of
them counts, so that all decide alike. What is far behind after a round has no more turns.
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

LAUNCHES = 6  # of a turn
ROUNDS = 4
BEHIND = 0.1  # how much slower than the fastest a candidate may be after a round, to go on
AS_PREDICTED = 0.05  # what differs by less teaches nothing new
GAIN = 0.01  # what is faster by no more than this is not worth another order of the work


@dataclass(frozen=True)
class Candidate:
    """One way to train.

    Attributes:
        name: for people.
        run: trains on any number of batches, and returns the logs.
        steps: of its launches.
        plan: that it carries out; None: nobody knows.
        predicted: seconds a step; None: nobody knows.
    """

    name: str
    run: Run
    steps: int = 1
    plan: Plan | None = None
    predicted: float | None = None


class Trial:
    """Runs launches: each candidate's in turn. All ranks do so together.

    Args:
        engine: of the ranks.
        candidates: the first is the default, which wins unless another is faster by more than
            ``GAIN``.

    Attributes:
        steps: of each of its launches; candidates with shorter ones run several.
        fastest: None until it is known.
        seconds: that a step of each candidate took.
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
        """Runs a launch of ``steps`` steps, of those that lead to a decision."""
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
            self._begin_round([0, *others])  # beside the default, whose round is as good or bad
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
    """Whether a step of a candidate has taken another time than was predicted."""
    return any(
        each.predicted is not None and abs(took / each.predicted - 1) > AS_PREDICTED
        for each, took in zip(candidates, seconds, strict=True)
    )


def timed(run: Run, batches: Sequence[Batch]) -> tuple[dict[str, Any], float]:
    """The logs, and the seconds until they are there."""
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
