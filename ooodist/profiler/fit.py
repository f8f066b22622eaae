"""Fits the cost model of a network to measured times.

With the terms of :class:`ooodist.planner.costs.Network`, for m exchanges of n bytes:

* one by one they take m (latency + fixed + n (seconds_per_byte + pull_seconds_per_byte));
* all at a time they take latency + m (fixed + n seconds_per_byte) + n pull_seconds_per_byte;
* a computation beside them takes m (cpu_seconds_per_exchange + n cpu_seconds_per_byte) longer.


The costs are the non-negative least-squares solution of these equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Timed(NamedTuple):
    """Measured times of exchanges of one size.

    Attributes:
        num_bytes: bytes of each exchange.
        num_exchanges: how many exchanges.
        one_by_one: seconds of all, each starting when the last one was complete.
        together: seconds of all, started at the same time.
    """

    num_bytes: int
    num_exchanges: int
    one_by_one: float
    together: float

    @property
    def each(self) -> float:
        """Seconds per exchange when all are started at the same time."""
        return self.together / self.num_exchanges


class ComputationSlowdown(NamedTuple):
    """The measured effect of exchanges of one size on a computation beside them.

    Attributes:
        num_bytes: bytes of each exchange.
        num_exchanges: how many exchanges.
        longer: seconds that the computation took longer because of them.
    """

    num_bytes: int
    num_exchanges: int
    longer: float


class LaneCosts(NamedTuple):
    """The costs of Network's lanes, in seconds and in seconds per byte."""

    latency: float
    fixed: float
    seconds_per_byte: float
    pull_seconds_per_byte: float


class CpuCosts(NamedTuple):
    """Network's processor costs, in seconds per exchange and in seconds per byte."""

    per_exchange: float
    per_byte: float


def fit_lanes(timed: Sequence[Timed], *, two_lanes: bool) -> LaneCosts:
    """The costs that minimize the squared relative errors of the times.

    The costs per byte are fitted to the two largest sizes only: most bytes travel in exchanges of
    such sizes.

    Args:
        timed: exchanges of at least two sizes, the smallest first.
        two_lanes: whether pulling may have a lane of its own (which then costs at most as much per
            byte as pushing); otherwise ``pull_seconds_per_byte`` is 0.
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
    """The coefficients of the four costs in each time, and the times in seconds."""
    rows: list[list[int]] = []
    seconds: list[float] = []
    for n, m, one_by_one, together in timed:
        rows += [[m, m, m * n, m * n], [1, m, m * n, n]]
        seconds += [one_by_one, together]
    return np.array(rows, float), np.array(seconds)


def _relative(matrix: np.ndarray, seconds: np.ndarray) -> list[float]:
    return _solve(matrix / seconds[:, None], np.ones(len(seconds)))


def fit_cpu(beside: Sequence[ComputationSlowdown]) -> CpuCosts:
    """The costs that minimize the squared errors of the times."""
    matrix = np.array([[m, m * n] for n, m, _ in beside], float)
    return CpuCosts(*_solve(matrix, np.array([item.longer for item in beside])))


def _solve(matrix: np.ndarray, right: np.ndarray) -> list[float]:
    from scipy.optimize import nnls  # half a second, saved by jobs that measure nothing

    scale = matrix.max(axis=0)  # the solver needs numbers of similar magnitude
    found, _ = nnls(matrix / scale, right)
    return [float(value) for value in found / scale]
