"""From measured times to the costs of a network.

With the terms of :class:`ooodist.planner.costs.Network`, for m exchanges of n bytes:

* one by one they take m (latency + fixed + n (seconds_per_byte + pull_seconds_per_byte));
* all at a time they take latency + m (fixed + n seconds_per_byte) + n pull_seconds_per_byte;
* a computation that they run beside takes m (cpu_seconds_per_exchange + n cpu_seconds_per_byte)
  longer.

These are solved for the costs by least squares, none of them negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Timed(NamedTuple):
    """Exchanges of one size.

    Attributes:
        num_bytes: of each.
        num_exchanges: how many.
        one_by_one: seconds of all, each starting when the last one was complete.
        together: seconds of all, started at the same time.
    """

    num_bytes: int
    num_exchanges: int
    one_by_one: float
    together: float

    @property
    def each(self) -> float:
        """Seconds of one of those that were started at the same time."""
        return self.together / self.num_exchanges


class Beside(NamedTuple):
    """Exchanges of one size beside a computation.

    Attributes:
        num_bytes: of each.
        num_exchanges: how many.
        longer: seconds that the computation took longer for them.
    """

    num_bytes: int
    num_exchanges: int
    longer: float


class LaneCosts(NamedTuple):
    """As in Network; in seconds, and seconds a byte."""

    latency: float
    fixed: float
    seconds_per_byte: float
    pull_seconds_per_byte: float


class CpuCosts(NamedTuple):
    """As in Network; seconds an exchange, and a byte."""

    per_exchange: float
    per_byte: float


def fit_lanes(timed: Sequence[Timed], *, two_lanes: bool) -> LaneCosts:
    """The costs for which the relative errors of the times are least.

    What a byte costs is taken from the two largest sizes alone: most bytes travel in exchanges of
    such sizes.

    Args:
        timed: exchanges of at least two sizes, the smallest first.
        two_lanes: whether pulling may have a lane of its own (then of no more cost a byte than
            pushing); otherwise ``pull_seconds_per_byte`` is 0.
    """
    columns = [0, 1, 2, 3] if two_lanes else [0, 1, 2]
    matrix, seconds = _equations(timed[-2:])
    per_byte = _relative(matrix[:, columns], seconds)[2:]
    if not any(per_byte):  # times so noisy that the larger exchanges took no longer
        n, m, _, together = timed[-1]
        per_byte[0] = together / (m * n)
    matrix, seconds = _equations(timed)
    rest = np.maximum(seconds - matrix[:, 2 : 2 + len(per_byte)] @ np.array(per_byte), 0.0)
    latency, fixed = _solve(matrix[:, :2] / seconds[:, None], rest / seconds)
    return LaneCosts(latency, fixed, *per_byte, *([] if two_lanes else [0.0]))


def _equations(timed: Sequence[Timed]) -> tuple[np.ndarray, np.ndarray]:
    """How often each of the four costs is in each time, and the times."""
    rows: list[list[int]] = []
    seconds: list[float] = []
    for n, m, one_by_one, together in timed:
        rows += [[m, m, m * n, m * n], [1, m, m * n, n]]
        seconds += [one_by_one, together]
    return np.array(rows, float), np.array(seconds)


def _relative(matrix: np.ndarray, seconds: np.ndarray) -> list[float]:
    return _solve(matrix / seconds[:, None], np.ones(len(seconds)))


def fit_cpu(beside: Sequence[Beside]) -> CpuCosts:
    """The costs for which the squared errors of all times are least."""
    matrix = np.array([[m, m * n] for n, m, _ in beside], float)
    return CpuCosts(*_solve(matrix, np.array([item.longer for item in beside])))


def _solve(matrix: np.ndarray, right: np.ndarray) -> list[float]:
    from scipy.optimize import nnls  # takes half a second, which jobs that measure nothing save

    scale = matrix.max(axis=0)  # the solver wants numbers of like size
    found, _ = nnls(matrix / scale, right)
    return [float(value) for value in found / scale]
