"""The closed sets of a network taken apart: all of them, or those that may be the best."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.elastic.selection import closed_sets
from ooodist.elastic.selection.closed_sets import Network, Search, Sets

ROOM = 100
UNITS = 8
EVERYTHING = 10**9


def closed(start: int, needs: Sequence[int]) -> set[int]:
    """All unions of the start with needs, one by one."""
    found = {start}
    for needed in needs:
        found |= {units | needed for units in found}
    return found


def cells_of(units: int, cells: dict[int, int]) -> int:
    return sum(own for bit, own in cells.items() if units & bit)


class Problem:
    """Some needs, from the fewest units up, with random costs and worth."""

    def __init__(self, start: int, needs: Sequence[int], seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.start = start
        self.needs = sorted({needed | start for needed in needs}, key=int.bit_count)
        self.cells = {1 << bit: int(generator.integers(0, 20)) for bit in range(UNITS)}
        self.prices = np.array([0.0, 0.5, 1.0, 3.0])
        worth = generator.random((len(self.needs), 1)) * 20
        self.worth = np.maximum(0.0, worth - self.prices * generator.random((len(worth), 1)))
        self.network = Network(start, self.needs, self.cells, self.worth, self.prices, ROOM)

    def kept(self, search: Search) -> Sets:
        return self.network.sets(self.prices * ROOM, search)

    def bounds(self) -> dict[tuple[bool, ...], float]:
        """The bound of each closed set that fits, by the groups that it has."""
        found = {}
        for units in closed(self.start, self.needs):
            has = tuple(not needed & ~units for needed in self.needs)
            own = cells_of(units & ~self.start, self.cells)
            values = np.array(has, dtype=float) @ self.worth + (ROOM - own) * self.prices
            if own <= ROOM:
                found[has] = float(values.min())
        return found


MASKS = st.integers(1, 2**UNITS - 1)
PROBLEMS = st.builds(
    Problem, st.just(0) | MASKS, st.lists(MASKS, min_size=1, max_size=7), st.integers(0, 2**32)
)


@given(PROBLEMS)
def test_all_closed_sets_are_found_unless_some_are_not_wanted(problem: Problem) -> None:
    search = Search(ROOM, -math.inf, EVERYTHING, is_coarse=False)
    found = problem.kept(search)
    assert {tuple(has) for has in found.has.tolist()} >= problem.bounds().keys() - {
        (False,) * len(problem.needs)
    }
    for has, cells, values in zip(*found, strict=True):
        units = problem.start
        for needed, is_there in zip(problem.needs, has, strict=True):
            units |= needed if is_there else 0
        assert cells >= cells_of(units & ~problem.start, problem.cells)
        assert values == pytest.approx(has @ problem.worth - cells * problem.prices)
    assert search.dropped == -math.inf


@given(PROBLEMS, st.integers(1, 4), st.floats(-50, 150), st.booleans())
def test_what_is_not_kept_is_not_wanted_or_counts_as_dropped(
    problem: Problem, most: int, least: float, is_coarse: bool
) -> None:
    search = Search(ROOM, least, most, is_coarse=is_coarse)
    kept = {tuple(has) for has in problem.kept(search).has.tolist()}
    assert len(kept) <= most
    for has, bound in problem.bounds().items():
        assert has in kept or bound <= max(least, search.dropped) + 1e-9 or not any(has)


@given(PROBLEMS)
def test_needs_that_overlap_too_much_are_bounded_all_together(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closed_sets, "MOST_TANGLED", 2)
        few = Problem(problem.start, problem.needs, 1)
    search = Search(ROOM, -math.inf, EVERYTHING, is_coarse=False)
    kept = {tuple(has) for has in few.kept(search).has.tolist()}
    for has, bound in few.bounds().items():
        assert has in kept or bound <= search.dropped + 1e-9 or not any(has)


def test_branches_that_cannot_all_be_listed_are_searched_soon() -> None:
    """12 branches of 6 units have 7 ** 12 closed sets; of these, few may be the best."""
    generator = random.Random(0)
    needs = [((1 << depth) - 1) << 6 * branch for branch in range(12) for depth in range(1, 7)]
    needs.sort(key=int.bit_count)
    cells = {1 << bit: generator.randint(1, 20) for bit in range(72)}
    prices = np.array([0.0, 0.5, 1.0, 2.0])
    worth = np.array([[generator.uniform(0, 40)] * 4 for _ in needs])
    room = sum(cells.values()) // 3
    network = Network(0, needs, cells, worth, prices, room)
    coarse = network.sets(prices * room, Search(room, 0.0, 64, is_coarse=False))
    best = (coarse.has @ worth)[:, 0].max()
    search = Search(room, float(best) - 1e-9, 4096, is_coarse=False)
    found = network.sets(prices * room, search)
    assert 1 <= len(found.cells) <= 4096
    assert (found.has @ worth)[:, 0].max() >= best
