"""Assigns the branches of one parallel to those of another, each to one at most."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

Integers = npt.NDArray[np.int64]

MOST_LISTED = 120  # up to this many assignments are enumerated; beyond, SciPy finds the best


def best_assignments(values: Integers) -> Integers:
    """The largest sum over pairs of branches, one to one.

    Args:
        values: gains, int64 (parallels, branches of the one, branches of the other).

    Returns:
        the sums, (parallels,).
    """
    few, many = sorted(values.shape[1:])
    if few == 1:
        return values.max(axis=(1, 2))
    if math.perm(many, few) > MOST_LISTED:
        return np.array([each[assignment(each)].sum() for each in values])
    if values.shape[1] > few:
        values = values.transpose(0, 2, 1)
    return values[:, np.arange(few), _assignments(many, few)].sum(axis=2).max(axis=1)


@functools.cache
def _assignments(many: int, few: int) -> Integers:
    """All ways to assign each of few branches one of many, (ways, few)."""
    return np.array(list(itertools.permutations(range(many), few)))


def assignment(values: Integers, unmatched: Integers | None = None) -> tuple[Integers, Integers]:
    """The pairs of branches with the largest sum.

    Among equal sums it chooses the pairs that leave the fewest operators without a partner, and of
    these the ones that keep the order.

    Args:
        values: gains, int64 (branches of the one, branches of the other).
        unmatched: for each pair the number of operators that cannot match, of the same shape.
    """
    apart = np.abs(np.subtract.outer(np.arange(values.shape[0]), np.arange(values.shape[1])))
    worse = apart
    if unmatched is not None:
        worse = apart + unmatched * (1 + apart.max() * min(values.shape))
    # SciPy computes in floats of 53 bits: some of these must hold what decides among equal sums.
    # What the gains lose by that is far less than the gain of any operator.
    bits = int(worse.max() * min(values.shape)).bit_length()
    gains = values >> max(0, bits - 8)
    rows, columns = linear_sum_assignment(gains * 2**bits - worse, maximize=True)
    return rows, columns
