"""Plans take turns in real training, and the fastest stays.

All plans compute the same numbers, so that no step is lost by trying one in earnest::

    launches  | default     | planned     | default     | planned     | the faster of them ...
    measured  | - x x x x x | - x x x x x | - x x x x x | - x x x x x |

The first launch of a turn is not measured: it may be traced. Each rank measures, and the slowest of
them counts, so that all decide alike.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooodist.engines.base import Engine
from ooodist.training.launch import Batch, Run

logger = logging.getLogger("ooodist")

LAUNCHES = 6  # of a turn
ROUNDS = 2
GAIN = 0.01  # what is faster by no more than this is not worth another order of the work


@dataclass(frozen=True)
class Candidate:
    """One way to train.

    Attributes:
        name: for people.
        run: trains on any number of batches, and returns the logs.
        steps: of its launches.
        predicted: seconds a step; None: nobody knows.
    """

    name: str
    run: Run
    steps: int = 1
    predicted: float | None = None


class Trial:
    """Runs launches: each candidate's in turn. All ranks do so together.

    Args:
        engine: of the ranks.
        candidates: the first is the default, which wins unless another is faster by more than
            ``GAIN``.

    Attributes:
        steps: of each of its launches; candidates with shorter ones run several.
        fastest: None until all had their turns.
    """

    def __init__(self, engine: Engine, candidates: Sequence[Candidate]) -> None:
        self._engine = engine
        self._candidates = list(candidates)
        self.steps = max(candidate.steps for candidate in candidates)
        self.fastest: Candidate | None = None
        self._measured: list[list[float]] = [[] for _ in candidates]
        self._turns = deque(
            (at, number > 0)
            for _ in range(ROUNDS)
            for at in range(len(candidates))
            for number in range(LAUNCHES)
        )

    def __call__(self, batches: Sequence[Batch]) -> dict[str, Any]:
        """Runs a launch of ``steps`` steps, of those that lead to a decision."""
        at, is_measured = self._turns.popleft()
        logs, seconds = timed(self._candidates[at].run, batches)
        if is_measured:
            self._measured[at].append(seconds / self.steps)
        if not self._turns:
            self._decide()
        return logs

    def _decide(self) -> None:
        own = np.array([statistics.median(seconds) for seconds in self._measured])
        medians = self._engine.all_reduce(own, "max")
        at = int(np.argmin(medians))
        if medians[at] >= (1 - GAIN) * medians[0]:
            at = 0
        self.fastest = self._candidates[at]
        logger.info(
            "tried in training: %s; %s stays",
            ", ".join(map(_result, self._candidates, medians.tolist())),
            self.fastest.name,
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
