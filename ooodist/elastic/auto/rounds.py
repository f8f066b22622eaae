"""``rho: auto``: the smallest rho with which the loss falls as fast per second as in full training.

A training begins in full. Then rounds follow, each between two stretches in full::

    full | 0.8 | full | 0.65 | full | 0.5 | full | 0.65 | full | 0.65 0.65 | full | ...
             as fast    as fast    slower    as fast      as fast, so twice as long

The fall of the loss per second with a rho is compared with the geometric mean of those in full
before and after it, which is exact where the loss decays exponentially. If it is as fast, a smaller
rho is tried, else a larger one, and a smaller one again after more and more rounds.

What rounds have cost is summed, in seconds of full training. No round begins that might bring the
sum above ``MOST_LOST`` of the training, so rounds never make it end later by more: assumed is that
the loss stays where it is with a rho that was not tried yet, and that one which was as fast before
loses no more than ``AT_RISK`` of its time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LADDER = (0.8, 0.65, 0.5, 0.4, 0.3)
AS_FAST = 0.95  # of the fall per second in full; less is slower
MOST_LOST = 0.04  # of the training's seconds; what is measured has errors, and 5 % is promised
AT_RISK = 0.25  # of the seconds of stretches with a rho that was as fast in the round before
MOST_STRETCHES = 8  # of a round
MOST_GAINED = 2.0  # times as fast; more is taken for noise


@dataclass
class AutoRho:
    """Chooses the rho of each stretch.

    Args:
        ladder: the values of rho that may be tried, from the largest down.

    Attributes:
        level: how far down the ladder the loss falls as fast; 0: nowhere, so training is full.
        lost: seconds that rounds have cost so far, compared with full training.
    """

    ladder: tuple[float, ...] = LADDER
    level: int = 0
    lost: float = 0.0
    _tried: int = 0  # the level of this round
    _stretches: int = 0  # of this round, with its rho, that have not ended
    _length: int = 1  # stretches of the next round with the rho of ``level``
    _wait: int = 0  # rounds before a smaller rho is tried
    _patience: int = 1
    _elapsed: float = 0.0
    _cost: float | None = None  # seconds to begin with a rho: to measure, select and trace
    _full: float = 0.0  # fall per second in full, before this round
    _falls: list[float] = field(default_factory=list)
    _seconds: float = 0.0  # of this round
    _extra: float = 0.0
    _is_told: bool = False

    @property
    def rho(self) -> float:
        """The rho of the present stretch."""
        return self.ladder[self._tried - 1] if self._stretches else 1.0

    @property
    def smallest(self) -> float:
        """The smallest rho with which the loss falls as fast, as far as is known."""
        return self.ladder[self.level - 1] if self.level else 1.0

    def begin(self, trained: float, lost: float) -> None:
        """Begins after a training in full.

        Args:
            trained: its seconds.
            lost: seconds that it has taken to begin.
        """
        self._elapsed, self.lost = trained, lost

    def end(self, fall: float, seconds: float, extra: float, left: float = 0.0) -> str:
        """Ends a stretch.

        Args:
            fall: of the loss, per second.
            seconds: of its steps.
            extra: seconds that measuring, selecting and tracing took for it.
            left: seconds of full training that are still to come; 0 if unknown.

        Returns:
            what was found, for the log; "" if the round goes on.
        """
        self._elapsed += seconds + extra
        if self._cost is None:
            self._cost, extra = 2 * extra, 0.0  # full training traces its step as well
        self._extra += extra
        if self._stretches:
            self._stretches -= 1
            self._falls.append(fall)
            self._seconds += seconds
            return ""
        found = self._judge(fall) if self._falls else ""
        self._full, self._falls, self._seconds, self._extra = fall, [], 0.0, 0.0
        short = self._begin(seconds, MOST_LOST * (self._elapsed + left))
        return found or short

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` takes, as plain values."""
        return {name: value for name, value in vars(self).items() if name != "ladder"}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state, within the present ladder."""
        vars(self).update(state)
        self.level = min(self.level, len(self.ladder))
        if self._tried > len(self.ladder):
            self._tried, self._stretches, self._falls = 0, 0, []

    def _judge(self, after: float) -> str:
        """Ends a round, with the fall per second in full after it."""
        full = math.sqrt(self._full * after) if min(self._full, after) > 0 else 0.0
        share = min(statistics.fmean(self._falls) / full, MOST_GAINED) if full else 0.0
        self.lost = max(0.0, self.lost + self._seconds * (1 - share) + self._extra)
        rho, is_new = self.ladder[self._tried - 1], self._tried > self.level
        if share >= AS_FAST:
            self._length = 1 if is_new else min(2 * self._length, MOST_STRETCHES)
            self.level = self._tried
        else:
            self._length, self._patience = 1, 2 * self._patience
            self._wait = self._patience
            self.level -= not is_new
        if not full:
            return f"in full the loss does not fall, so nothing is known of {rho:g}"
        return f"with {rho:g} the loss fell {share:.2f} times as fast per second as in full"

    def _begin(self, seconds: float, most_lost: float) -> str:
        """Begins the next round, if one may begin.

        Args:
            seconds: of a stretch in full.
            most_lost: seconds.

        Returns:
            why there was no round yet, once; else "".
        """
        if self._wait:
            self._wait -= 1
        elif self.level < len(self.ladder):
            assert self._cost is not None
            cost = self._cost + seconds
            if self.lost + cost <= most_lost:
                self._tried, self._stretches = self.level + 1, 1
                return ""
            if not self._tried and not self._is_told:
                self._is_told = True
                return (
                    f"training goes on in full, as to try {self.ladder[0]:g} takes about "
                    f"{cost:.1f} s, and {most_lost:.1f} s may be lost"
                )
        length = self._length
        while length and self.lost + AT_RISK * length * seconds > most_lost:
            length //= 2
        if self.level:
            self._tried, self._stretches = self.level, length
        return ""
