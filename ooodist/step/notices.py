"""Numbers that each rank raises when it likes, and whose sums all ranks learn at the same call.

A rank is told to stop, or has written its part of a checkpoint: all have to know, and to act after
the same step. So these numbers travel in the exchange that each call has for its logs anyway; an
exchange of their own, in each call, would make all ranks wait. Numbers only grow. So what arrives
late, or twice, says nothing new.
"""

from __future__ import annotations

import enum

import numpy as np


class Notice(enum.IntEnum):
    """What ranks tell each other."""

    STOP = 0  # a signal asks this rank to end
    DUE = 1  # how many checkpoints were due by rank 0's clock
    WRITTEN = 2  # how many checkpoints this rank has written its part of


class Notices:
    """The numbers of this rank, and the sums over all ranks, as of the call that was read last."""

    def __init__(self) -> None:
        self._own = np.zeros(len(Notice), np.float32)
        self._sums = np.zeros(len(Notice), int)

    def tell(self, notice: Notice, number: int) -> None:
        """Raises a number of this rank; any thread may call it."""
        self._own[notice] = number

    def own(self) -> np.ndarray:
        """What this rank tells in its next call: float32, one for each :class:`Notice`."""
        return self._own.copy()

    def learn(self, sums: np.ndarray) -> None:
        """Takes the sums over all ranks from a call; exact up to 16 million."""
        self._sums = np.asarray(sums).astype(int)

    def total(self, notice: Notice) -> int:
        """The sum over all ranks; the same on all of them after the same call."""
        return int(self._sums[notice])
