"""Finds the best alignment of two series: which elements match, as in the comparison of texts.

Among equally good alignments it chooses one with the fewest gaps, and of those the one whose early
elements match.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

GAPS = 16  # bits below the gains, where an alignment counts its gaps
NEVER = -(2**61)  # less than any alignment gains
MATCHED, OURS, THEIRS = 0, 1, 2  # the states, in the lowest two bits of a step
OURS_GO_ON, THEIRS_GO_ON, OURS_BEFORE = 4, 8, 16


def aligned(rows: Iterable[Integers], width: int) -> list[tuple[int, int]]:
    """The best alignment of two series: places of elements in the one and in the other.

    Gotoh's three states: the last elements are matched, or one of the child is skipped, or one of
    the parent. Skipped ones in a row are a gap, where those of the child come first.

    Args:
        rows: for each element of the child its gains with the parent's, (width,); 0: no match.
        width: number of elements of the parent.
    """
    matched = np.full(width + 1, NEVER)
    ours = np.full(width + 1, NEVER)  # skipped
    theirs = np.full(width + 1, -1)
    matched[0], theirs[0] = 0, NEVER
    steps: list[npt.NDArray[np.uint8]] = []
    best = _step(matched, ours, theirs, ours > matched, steps)
    for gains in rows:
        opened = matched - 1
        goes_on = ours >= opened
        ours = np.maximum(ours, opened)
        matched = np.full(width + 1, NEVER)
        matched[1:] = best[:-1] + np.where(gains > 0, gains << GAPS, NEVER)
        theirs = np.full(width + 1, NEVER)
        theirs[1:] = np.maximum.accumulate(np.maximum(matched, ours)[:-1] - 1)
        best = _step(matched, ours, theirs, goes_on, steps)
    return _traced_back(steps)


def _step(
    matched: Integers,
    ours: Integers,
    theirs: Integers,
    goes_on: npt.NDArray[np.bool_],
    steps: list[npt.NDArray[np.uint8]],
) -> Integers:
    """Chooses the best of the states, and appends the way to them to the steps.

    Of equally good ways it takes the one whose last elements are skipped: early ones match.
    """
    either = np.maximum(matched, ours)
    best = np.maximum(either, theirs)
    step = np.where(theirs == best, THEIRS, np.where(ours == best, OURS, MATCHED)).astype(np.uint8)
    step |= np.where(goes_on, OURS_GO_ON, 0).astype(np.uint8)
    step[1:] |= np.where(theirs[:-1] >= either[:-1] - 1, THEIRS_GO_ON, 0).astype(np.uint8)
    step |= np.where(ours >= matched, OURS_BEFORE, 0).astype(np.uint8)
    steps.append(step)
    return best


def _traced_back(steps: Sequence[npt.NDArray[np.uint8]]) -> list[tuple[int, int]]:
    """The pairs of an alignment: the steps lead from its end to its start."""
    pairs = []
    row, column = len(steps) - 1, steps[0].size - 1
    state = int(steps[row][column]) & 3
    while row or column:
        step = int(steps[row][column])
        if state == MATCHED:
            row, column = row - 1, column - 1
            pairs.append((row, column))
            state = int(steps[row][column]) & 3
        elif state == OURS:
            row -= 1
            state = OURS if step & OURS_GO_ON else MATCHED
        else:
            column -= 1
            if not step & THEIRS_GO_ON:
                state = OURS if int(steps[row][column]) & OURS_BEFORE else MATCHED
    return pairs[::-1]
