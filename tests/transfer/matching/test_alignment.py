"""Alignments: the best of all, with the fewest gaps, and early elements first."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooodist.transfer.matching.alignment import aligned

SEEDS = st.integers(0, 10**6)


def alignments(
    ours: int, theirs: int, gains: np.ndarray
) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """All alignments of two series: gain, gaps, and pairs."""
    found = []
    for count in range(min(ours, theirs) + 1):
        for some in itertools.combinations(range(ours), count):
            for others in itertools.combinations(range(theirs), count):
                pairs = list(zip(some, others, strict=True))
                if all(gains[pair] > 0 for pair in pairs):
                    framed = [(-1, -1), *pairs, (ours, theirs)]
                    gaps = sum(
                        (after[side] - before[side] > 1)
                        for before, after in itertools.pairwise(framed)
                        for side in (0, 1)
                    )
                    found.append((sum(int(gains[pair]) for pair in pairs), gaps, pairs))
    return found


@given(SEEDS, st.integers(0, 6), st.integers(0, 6), st.sampled_from([2, 3, 100]))
def test_alignments_are_the_best_with_the_fewest_gaps(
    seed: int, ours: int, theirs: int, most: int
) -> None:
    gains = np.random.default_rng(seed).integers(0, most, (ours, theirs))
    pairs = aligned(gains, theirs)
    every = alignments(ours, theirs, gains)
    best = max(gain for gain, _, _ in every)
    gaps = min(gaps for gain, gaps, _ in every if gain == best)
    assert (best, gaps, pairs) in every


def test_among_equal_alignments_early_elements_match() -> None:
    assert aligned(np.ones((5, 2), np.int64), 2) == [(0, 0), (1, 1)]
    assert aligned(np.ones((2, 5), np.int64), 5) == [(0, 0), (1, 1)]
    # The first and the last fit nothing, which makes two gaps either way.
    assert aligned(np.array([[0], [1], [1], [0]]), 1) == [(1, 0)]
    assert aligned(np.array([[0, 1, 1, 0]]), 4) == [(0, 1)]
    # The last fits only the last, so that the gap is before it.
    gains = np.array([[1, 1, 0]] * 5 + [[0, 0, 1]])
    assert aligned(gains, 3) == [(0, 0), (1, 1), (5, 2)]


def test_gains_as_large_as_they_may_be() -> None:
    gains = np.full((3, 2), 2**44)
    gains[1, 0] += 1
    assert aligned(gains, 2) == [(1, 0), (2, 1)]
