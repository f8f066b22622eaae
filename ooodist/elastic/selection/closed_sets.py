"""The closed sets of dX units that may have the best selection, found without listing all of them.

Wherever branches run side by side, each can be cut off anywhere, so networks such as Inception have
more closed sets than can be listed. But their parts follow each other or lie side by side::

    loss -> A -> B ----> F -> G          A, then B beside (C, then D beside E), then F, then G
              -> C -> D ->
                   -> E ->

At a fixed price per second, an item is worth ``max(0, I_i - price w_i)``, each unit costs its
seconds, and what is left of both is the value of a closed set. Its value and the price of the whole
budget are an upper bound of what fits beside its units (Lagrangian relaxation: Fisher, "The
Lagrangian relaxation method for solving integer programming problems", Management Science 1981).
Values add up part by part. So all closed sets that are alike in one part are dropped together if
the bound, with the best of all other parts, is too low at one of some prices.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ooodist.elastic.selection.items import bits_of
from ooodist.elastic.selection.knapsack import BoolArray, IntArray

FloatArray = npt.NDArray[np.float64]

MOST_TANGLED = 4096  # unions that are listed where needs overlap in no simple way


class Sets(NamedTuple):
    """Closed sets of a part of the network.

    Attributes:
        has: whether each has all needs of each group of items, of shape (sets, groups).
        cells: the cells (scaled seconds) of each one's units.
        values: the value of each at each price, of shape (sets, prices).
    """

    has: BoolArray
    cells: IntArray
    values: FloatArray

    def of(self, numbers: IntArray) -> Sets:
        """The sets with these numbers."""
        return Sets(self.has[numbers], self.cells[numbers], self.values[numbers])


class Search:
    """Decides which closed sets of each part are kept.

    Args:
        room: cells; sets that take more are of no use.
        least: nor are those whose bound is no higher.
        most: how many of the others are kept of a part.
        is_coarse: whether parts that lie side by side are not cut off one by one.

    Attributes:
        dropped: the highest bound of the sets that may be of use and are not kept.
    """

    def __init__(self, room: int, least: float, most: int, *, is_coarse: bool) -> None:
        self._room = room
        self._least = least
        self._most = most
        self._is_coarse = is_coarse
        self.dropped = -math.inf

    def enters(self, bound: float) -> bool:
        """Whether to cut off parts side by side one by one, which yields no higher bound."""
        if self._is_coarse:
            self.drop(bound)
        return bound > self._least and not self._is_coarse

    def drop(self, bound: float) -> None:
        """Notes that sets with this bound, at most, are not kept."""
        if bound > self._least:
            self.dropped = max(self.dropped, bound)

    def kept(self, bounds: FloatArray, cells: IntArray) -> IntArray:
        """The numbers of the sets that are kept of those with these bounds and cells."""
        numbers = np.flatnonzero((bounds > self._least) & (cells <= self._room))
        if len(numbers) > self._most:
            numbers = numbers[np.argsort(-bounds[numbers], kind="stable")]
            self.drop(float(bounds[numbers[self._most]]))
            numbers = numbers[: self._most]
        return numbers

    def best_of(self, sets: Sets, others: FloatArray) -> Sets:
        """Those of the sets that are kept; ``others`` is the most that all else can add."""
        return sets.of(self.kept((sets.values + others).min(axis=1), sets.cells))


class Part(Protocol):
    """A part of the network.

    Attributes:
        groups: its groups of items; the columns of its sets.
        cells: the cells of all of its units.
        value: the value of the whole part, at each price.
        most: the highest value of any of its closed sets, at each price.
    """

    groups: list[int]
    cells: int
    value: FloatArray
    most: FloatArray

    def sets(self, others: FloatArray, search: Search) -> Sets:
        """Those of its closed sets that are kept."""


class Network:
    """All dX units of a network, taken apart.

    Args:
        start: the units that run anyway, as a bit mask. They take no cells.
        needs: what each group of items needs, as bit masks that contain ``start``; all different,
            and none before its subsets.
        cells: the cells of each unit, by its bit.
        worth: the worth of the items of each group at each price, of shape (groups, prices).
        prices: importance per cell.
        room: cells; sets that take more are of no use.
    """

    def __init__(
        self,
        start: int,
        needs: Sequence[int],
        cells: Mapping[int, int],
        worth: FloatArray,
        prices: FloatArray,
        room: int,
    ) -> None:
        self._needs, self._cells = needs, cells
        self._worth, self._prices, self._room = worth, prices, room
        self._whole = self._in_turn(list(range(len(needs))), start)
        self._columns = np.argsort(self._whole.groups)

    def sets(self, budget: FloatArray, search: Search) -> Sets:
        """The closed sets that may have the best selection; ``budget`` is its price."""
        found = self._whole.sets(budget, search)
        return found._replace(has=found.has[:, self._columns])

    def _in_turn(self, groups: list[int], start: int) -> Part:
        """Takes apart what runs behind ``start``: wherever all that follows needs all before."""
        needs = [self._needs[group] for group in groups]
        before = list(itertools.accumulate(needs, operator.or_, initial=start))
        common = list(itertools.accumulate(reversed(needs), operator.and_))[::-1]
        cuts = [place for place, all_need in enumerate(common) if not before[place] & ~all_need]
        links = []
        for first, end in itertools.pairwise([*cuts, len(groups)]):
            stem = common[first]
            here = [group for group in groups[first:end] if self._needs[group] == stem]
            cells = self._cells_of(stem & ~before[first])
            value = self._worth[here].sum(axis=0) - cells * self._prices
            beyond = groups[first + len(here) : end]
            links.append(_Link(here, cells, value, self._beside(beyond, stem) if beyond else None))
        return _InTurn(links)

    def _beside(self, groups: list[int], start: int) -> Part:
        """Takes apart what lies side by side: groups whose needs have no unit in common."""
        found: list[tuple[int, list[int]]] = []
        for group in groups:
            units, members = self._needs[group] & ~start, [group]
            for other in [other for other in found if other[0] & units]:
                found.remove(other)
                units, members = units | other[0], [*other[1], *members]
            found.append((units, sorted(members)))
        if len(found) == 1:
            return self._tangled(groups, start)
        return _SideBySide([self._in_turn(members, start) for _, members in found])

    def _tangled(self, groups: list[int], start: int) -> Part:
        needs = [self._needs[group] for group in groups]
        worth = self._worth[groups]
        most = None
        unions = self._unions(needs, start)
        if unions is None:
            unions = list(itertools.accumulate(needs, operator.or_, initial=start))
            most = self._most_tangled(needs, worth, start)
        unions.append(functools.reduce(operator.or_, needs, start))
        has = np.array([[not needed & ~units for needed in needs] for units in unions])
        cells = np.array([self._cells_of(units & ~start) for units in unions])
        values = has @ worth - np.multiply.outer(cells, self._prices)
        return _Tangled(groups, Sets(has, cells, values), most)

    def _unions(self, needs: Sequence[int], start: int) -> list[int] | None:
        """All unions of needs that fit into the room; None if they are too many."""
        cells, tried = {start: 0}, {start}
        for needed in needs:
            for units, own in list(cells.items()):
                both = units | needed
                if both in tried:
                    continue
                tried.add(both)
                total = own + self._cells_of(needed & ~units)
                if total <= self._room:
                    cells[both] = total
                if max(len(cells), len(tried) // 8) > MOST_TANGLED:
                    return None
        return list(cells)

    def _most_tangled(self, needs: Sequence[int], worth: FloatArray, start: int) -> FloatArray:
        """At least the highest value of a closed set: groups share the cost of a unit by worth.

        None pays more than its share, though it would have to if others are left out.
        """
        left = np.ones_like(worth)
        needing: dict[int, list[int]] = {bit: [] for bit in self._cells if not bit & start}
        for place, needed in enumerate(needs):
            for bit in bits_of(needed & ~start):
                needing[bit].append(place)
        for bit, places in needing.items():
            total = worth[places].sum(axis=0)
            cost = self._cells[bit] * self._prices
            left[places] -= np.divide(cost, total, out=np.zeros_like(total), where=total > 0)
        most: FloatArray = (worth * np.maximum(0.0, left)).sum(axis=0)
        return most

    def _cells_of(self, units: int) -> int:
        return sum(map(self._cells.__getitem__, bits_of(units)))


class _Link(NamedTuple):
    """Units that all of the following need, and what lies side by side behind them.

    Attributes:
        groups: the group that needs nothing else, if there is one.
        cells: of the units.
        value: of both.
        beside: what follows before the next link; None: nothing.
    """

    groups: list[int]
    cells: int
    value: FloatArray
    beside: Part | None


class _InTurn:
    """Links, each of which needs all those before it."""

    def __init__(self, links: Sequence[_Link]) -> None:
        self.groups: list[int] = []
        self.cells = 0
        self.value = self.most = np.zeros_like(links[0].value)
        self._besides: list[tuple[int, Part]] = []  # each behind a set of those that are whole
        self._columns, cells, values = [0], [0], [self.value]  # of sets whose parts are whole

        for link in links:
            parts: list[_Link | Part] = [link] if link.beside is None else [link, link.beside]
            for part in parts:
                self.groups += part.groups
                self.cells += part.cells
                self.value = self.value + part.value
                self._columns.append(len(self.groups))
                cells.append(self.cells)
                values.append(self.value)
            self.most = np.maximum(self.most, self.value)
            if link.beside is not None:
                self._besides.append((len(values) - 2, link.beside))
                self.most = np.maximum(self.most, values[-2] + link.beside.most)
        has = np.arange(len(self.groups)) < np.array(self._columns)[:, None]
        self._whole = Sets(has, np.array(cells), np.array(values))

    def sets(self, others: FloatArray, search: Search) -> Sets:
        whole = self._whole
        found = [search.best_of(whole, others)]
        for number, beside in self._besides:
            before = others + whole.values[number]
            if not search.enters(float((before + beside.most).min())):
                continue
            own = beside.sets(before, search)
            own = own.of(np.flatnonzero(own.has.any(axis=1) & ~own.has.all(axis=1)))
            has = np.repeat(whole.has[number : number + 1], len(own.cells), axis=0)
            start = self._columns[number]
            has[:, start : start + own.has.shape[1]] = own.has
            found.append(
                Sets(has, whole.cells[number] + own.cells, whole.values[number] + own.values)
            )
        together = Sets(*map(np.concatenate, zip(*found, strict=True)))
        return search.best_of(together, others)


class _SideBySide:
    """Parts that have no unit in common."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.groups = [group for part in parts for group in part.groups]
        self.cells = sum(part.cells for part in parts)
        self.value = np.sum([part.value for part in parts], axis=0)
        self.most = np.sum([part.most for part in parts], axis=0)

    def sets(self, others: FloatArray, search: Search) -> Sets:
        left = self.most  # of the parts that are still to be combined
        found = Sets(
            np.zeros((1, 0), dtype=np.bool_), np.zeros(1, dtype=np.int64), np.zeros((1, len(left)))
        )
        for part in self._parts:
            own = part.sets(others + (self.most - part.most), search)
            left = left - part.most
            bounds = np.full((len(found.cells), len(own.cells)), np.inf)
            for ones, all_own in zip((found.values + (others + left)).T, own.values.T, strict=True):
                np.minimum(bounds, ones[:, None] + all_own, out=bounds)
            cells = np.add.outer(found.cells, own.cells)
            kept = search.kept(bounds.ravel(), cells.ravel())
            first, second = np.divmod(kept, max(1, len(own.cells)))
            found, own = found.of(first), own.of(second)
            found = Sets(
                np.hstack([found.has, own.has]),
                found.cells + own.cells,
                found.values + own.values,
            )
        return found


class _Tangled:
    """Groups whose needs overlap in any way.

    Args:
        groups: the groups.
        sets: closed sets of them, among them the one of all units.
        most: at least the highest value of any closed set; None: these are all that fit.
    """

    def __init__(self, groups: list[int], sets: Sets, most: FloatArray | None) -> None:
        self.groups = groups
        whole = int(np.argmax(sets.has.all(axis=1)))
        self.cells, self.value = int(sets.cells[whole]), sets.values[whole]
        self.most = sets.values.max(axis=0) if most is None else most
        self._sets = sets
        self._are_all = most is None

    def sets(self, others: FloatArray, search: Search) -> Sets:
        if not self._are_all:
            search.drop(float((others + self.most).min()))
        return search.best_of(self._sets, others)
