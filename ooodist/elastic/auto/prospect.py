"""Whether a training is long enough to look for a smaller rho: until it is, it stays full.

To find out which rho pays, the model is measured, and steps with a selection are traced. Before the
first step nobody knows how long a training takes, so it begins in full, as without ``elastic``::

    full, by the wrapped strategy ... | measure | the rounds of rounds.py ...
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable

import numpy as np

from ooodist.data_parallel.live_planning import MEASURED_STEPS, NETWORK_SECONDS
from ooodist.elastic.auto import rounds
from ooodist.elastic.auto.fall_meter import FallMeter
from ooodist.engines.base import Engine
from ooodist.trainer.live import TIMED_CALLS, WARM_UP_CALLS

logger = logging.getLogger("ooodist")

TRACED = 4  # steps: to measure importance, in full, with the first rho, and in full after it
CALIBRATED = 3  # selections that are traced where no profile is kept


class Prospect:
    """Times full steps, and asks now and then whether to go on so. All ranks call it alike.

    Args:
        engine: connects the ranks.
        is_profile_kept: whether this rank seems to have the profile that will be needed.

    Attributes:
        first: seconds of the first call, which is traced, for each of its updates.
        trained: seconds of all calls.
    """

    def __init__(self, engine: Engine, is_profile_kept: Callable[[], bool]) -> None:
        self._engine = engine
        self._is_profile_kept = is_profile_kept
        self._calls = 0
        self.first = 0.0
        self._times: list[float] = []  # seconds per update
        self.trained = 0.0
        self._is_told = False

    @property
    def is_timing(self) -> bool:
        """Whether the seconds of the next call are needed."""
        return self._calls < WARM_UP_CALLS + TIMED_CALLS

    def ran(self, updates: int, seconds: float | None = None) -> None:
        """Notes a call of so many updates, and, while it :attr:`is_timing`, its seconds."""
        self._calls += 1
        if seconds is None:
            self.trained += statistics.median(self._times) * updates
            return
        self.trained += seconds
        if self._calls == 1:
            self.first = seconds / updates
        elif self._calls > WARM_UP_CALLS:
            self._times.append(seconds / updates)

    def is_worth(self, left: int | None) -> bool:
        """Whether what is lost by looking for a smaller rho is little of the training.

        Args:
            left: updates that are still to come; None if unknown: then the time trained so far
                counts.
        """
        timed = self._calls - WARM_UP_CALLS - TIMED_CALLS
        if timed < 0 or timed.bit_count() > 1:  # ranks wait for each other to decide
            return False
        own = (statistics.median(self._times), self.first, self.trained)
        is_kept = self._engine.rank == 0 and self._is_profile_kept()
        most = self._engine.all_reduce(np.array([*own, is_kept]), "max").tolist()
        step, first, trained, kept = most
        training = trained + (left or 0) * step
        cost = TRACED * first + FallMeter(left).updates * step
        if not kept:
            cost += CALIBRATED * first + MEASURED_STEPS * step
            cost += NETWORK_SECONDS if self._engine.size > 1 else 0.0
        allowed = rounds.MOST_LOST * training
        if cost > allowed and not self._is_told:
            self._is_told = True
            logger.info(
                "elastic: rho auto: training goes on in full, as to measure and to try a smaller "
                "rho takes about %.0f s, and %.1f s of %.0f s may be lost",
                cost,
                allowed,
                training,
            )
        return cost <= allowed
