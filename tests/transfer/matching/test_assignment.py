"""Assignments of branches: the best of all, and in their order."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooodist.transfer.matching.assignment import MOST_LISTED, assignment, best_assignments

SEEDS = st.integers(0, 10**6)


@given(SEEDS, st.integers(1, 6), st.integers(1, 6), st.integers(0, 5))
def test_assignments_are_the_best_and_keep_the_order(
    seed: int, ours: int, theirs: int, count: int
) -> None:
    values = np.random.default_rng(seed).integers(0, 4, (count, ours, theirs))
    found = best_assignments(values).tolist()
    assert len(found) == count
    for each, best in zip(values, found, strict=True):
        few = each.T if ours > theirs else each
        least, gained = min(
            (sum(abs(row - column) for row, column in enumerate(chosen)), gained)
            for chosen in itertools.permutations(range(max(ours, theirs)), len(few))
            if (gained := int(few[range(len(few)), list(chosen)].sum())) >= best
        )
        rows, columns = assignment(each)
        assert gained == best == each[rows, columns].sum()
        assert np.abs(rows - columns).sum() == least


def test_both_ways_to_assign_give_the_same() -> None:
    """A branch that gains nothing changes nothing, but 6 to 6 are too many to be listed."""
    assert 5 * 4 * 3 * 2 <= MOST_LISTED < 6 * 5 * 4 * 3 * 2
    values = np.random.default_rng(0).integers(0, 2**44, (20, 5, 5))
    padded = np.pad(values, ((0, 0), (0, 1), (0, 1)))
    assert best_assignments(padded).tolist() == best_assignments(values).tolist()


def test_equal_branches_are_assigned_in_their_order() -> None:
    rows, columns = assignment(np.full((4, 9), 2**44))
    assert rows.tolist() == columns.tolist() == [0, 1, 2, 3]
