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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooodist.engines.base import Engine
from ooodist.training.launch import Batch

logger = logging.getLogger("ooodist")

LAUNCHES = 6  # of a turn
ROUNDS = 2
GAIN = 0.01  # what is faster by no more than this is not worth another order of the work

Logs = dict[str, Any]


@dataclass(frozen=True)
class Candidate:
    """One way to run a launch.

    Attributes:
        name: for people.
        run: trains on the batches of a launch, and returns the logs.
        predicted: seconds a step; None: nobody knows.
        seconds: a step, of the launches that were measured on this rank.
    """

    name: str
    run: Callable[[Sequence[Batch]], Logs]
    predicted: float | None = None
    seconds: list[float] = field(default_factory=list)


class Trial:
    """Runs launches: each candidate's in turn, then those of the fastest. All ranks do so together.

    Args:
        engine: of the ranks.
        candidates: the first is the default, which stays unless another is faster by more than
            ``GAIN``.
        steps: of a launch.
        decided: called with the name of the one that stays.

    Attributes:
        fastest: as far as is known: the default until all were tried.
    """

    def __init__(
        self,
        engine: Engine,
        candidates: Sequence[Candidate],
        steps: int,
        decided: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._candidates = list(candidates)
        self._steps = steps
        self._decided = decided
        self.fastest = self._candidates[0]
        self._turns = deque(
            (candidate, number > 0)
            for _ in range(ROUNDS)
            for candidate in self._candidates
            for number in range(LAUNCHES)
        )

    def __call__(self, batches: Sequence[Batch]) -> Logs:
        """Runs a launch."""
        if not self._turns:
            return self.fastest.run(batches)
        candidate, is_measured = self._turns.popleft()
        started = time.perf_counter()
        logs = candidate.run(batches)
        for value in itertools.islice(logs.values(), 1):
            np.asarray(value)  # when it is there, the launch has ended
        if is_measured:
            candidate.seconds.append((time.perf_counter() - started) / self._steps)
        if not self._turns:
            self._decide()
        return logs

    def _decide(self) -> None:
        own = np.array([statistics.median(each.seconds) for each in self._candidates])
        medians = self._engine.all_reduce(own, "max")
        fastest = int(np.argmin(medians))
        if medians[fastest] >= (1 - GAIN) * medians[0]:
            fastest = 0
        self.fastest = self._candidates[fastest]
        logger.info(
            "tried in training: %s; %s stays",
            ", ".join(map(_result, self._candidates, medians.tolist())),
            self.fastest.name,
        )
        self._decided(self.fastest.name)


def _result(candidate: Candidate, measured: float) -> str:
    text = f"{candidate.name} {measured * 1e3:.1f} ms a step"
    if candidate.predicted is None:
        return text
    return f"{text} (predicted {candidate.predicted * 1e3:.1f})"
