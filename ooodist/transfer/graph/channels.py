"""Finds which units belong together, while walking through a model.

A *layout* says what the last axis of a tensor runs over: stretches of units. Where two tensors are
added, their layouts are joined: from then on their units are the same. Joining layouts with
different boundaries splits units::

    shortcut, padded with zeros   | A: 16 | P: 16 |
    branch                        |     B: 32     |      B is split into A and P
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ooodist.transfer.graph.graph import Segment, Space

Kind = Literal["units", "input", "output", "fixed"]
_STRONGER: tuple[Kind, ...] = ("units", "fixed", "output", "input")


class Units:
    """A number of units, which may be united with others or split into parts."""

    def __init__(self, size: int, kind: Kind = "units", averaged: bool = False) -> None:
        self.size = size
        self.kind: Kind = kind
        self.averaged = averaged
        self._same: Units | None = None
        self._parts: tuple[Units, Units] | None = None

    def root(self) -> Units:
        """The units that represent all that are the same."""
        found = self
        while found._same is not None:
            found = found._same
        return found

    def leaves(self) -> list[Units]:
        """The parts that are not split further."""
        if self._same is not None:
            return self.root().leaves()
        if self._parts is None:
            return [self]
        return [leaf for part in self._parts for leaf in part.leaves()]

    def split(self, first: int) -> None:
        """Splits these units into the ``first`` ones and the rest."""
        assert self._same is None
        assert self._parts is None
        self._parts = (
            Units(first, self.kind, self.averaged),
            Units(self.size - first, self.kind, self.averaged),
        )

    def unite(self, other: Units) -> None:
        """Makes both the same from now on; they must have the same size and no parts."""
        if self is other:
            return
        assert self.size == other.size
        assert self._parts is None
        assert other._parts is None
        other._same = self
        self.averaged |= other.averaged
        self.kind = max(self.kind, other.kind, key=_STRONGER.index)


@dataclass(frozen=True)
class Stretch:
    """Units as a stretch of an axis; see :class:`ooodist.transfer.graph.graph.Segment`."""

    units: Units
    place: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    inner: int = 1

    @property
    def size(self) -> int:
        """The number of indices of the stretch."""
        return self.units.size * self.inner


Layout = tuple[Stretch, ...]


def of(units: Units) -> Layout:
    """The layout of an axis that runs over these units."""
    return (Stretch(units),)


def new(size: int | None, kind: Kind = "units") -> Layout:
    """The layout of an axis of new units; empty if their number is unknown."""
    return of(Units(size, kind)) if size else ()


def size_of(layout: Layout) -> int:
    """The number of indices of the axis."""
    return sum(stretch.size for stretch in layout)


def leaves(layout: Iterable[Stretch]) -> list[Stretch]:
    """The same axis in stretches of units that are not split further."""
    return [replace(each, units=part) for each in layout for part in each.units.leaves()]


def freeze(layout: Layout, kind: Kind = "fixed") -> None:
    """Restricts these units to what ``kind`` allows."""
    for stretch in leaves(layout):
        stretch.units.kind = max(stretch.units.kind, kind, key=_STRONGER.index)


def average(layout: Layout) -> None:
    """Marks these units as averaged by a norm."""
    for stretch in leaves(layout):
        stretch.units.averaged = True


def join(one: Layout, other: Layout) -> None:
    """Makes two axes run over the same units; freezes them where that is impossible."""
    if size_of(one) != size_of(other):
        freeze(one)
        freeze(other)
        return
    first, second = leaves(one), leaves(other)
    while first and second:
        x, y = first[0], second[0]
        if (x.place, x.grid, x.inner) != (y.place, y.grid, y.inner):
            freeze(tuple(first))
            freeze(tuple(second))
            return
        if x.size == y.size:
            x.units.unite(y.units)
            # The united units may occur again in the rest.
            first, second = leaves(first[1:]), leaves(second[1:])
            continue
        longer, shorter = (x, y) if x.size > y.size else (y, x)
        longer.units.split(shorter.units.size)
        first, second = leaves(first), leaves(second)


def cut(layout: Layout, sizes: Sequence[int]) -> list[Layout] | None:
    """Cuts the axis into parts of these sizes; freezes it and returns None if it cannot."""
    if sum(sizes) != size_of(layout) or min(sizes) < 1:
        freeze(layout)
        return None
    parts: list[Layout] = []
    rest = leaves(layout)
    for size in sizes:
        part: list[Stretch] = []
        while size > 0:
            stretch = rest[0]
            if stretch.size <= size:
                part.append(stretch)
                size -= stretch.size
                rest = rest[1:]
            elif stretch.inner > 1:
                freeze(layout)
                return None
            else:
                stretch.units.split(size)
                rest = leaves(rest)
        parts.append(tuple(part))
    return parts


def on_grid(layout: Layout, grid: tuple[int, ...]) -> Layout:
    """Repeats the axis for each place of a grid, as after a Flatten of pixels."""
    if math.prod(grid) == 1:
        return layout
    if any(stretch.grid for stretch in layout):
        freeze(layout)
        return new(math.prod(grid) * size_of(layout), "fixed")
    places = itertools.product(*map(range, grid))
    return tuple(replace(stretch, place=p, grid=grid) for p in places for stretch in layout)


class Numbering:
    """Numbers the spaces that remain once all layouts have been joined."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._units: list[Units] = []

    def segments(self, layout: Layout) -> tuple[Segment, ...]:
        """The segments that represent a layout in a graph."""
        return tuple(
            Segment(self._number(each.units.root()), each.place, each.grid, each.inner)
            for each in leaves(layout)
        )

    def _number(self, units: Units) -> int:
        if id(units) not in self._numbers:
            self._numbers[id(units)] = len(self._units)
            self._units.append(units)
        return self._numbers[id(units)]

    @property
    def spaces(self) -> tuple[Space, ...]:
        """All spaces numbered so far."""
        return tuple(Space(each.size, each.kind, each.averaged) for each in self._units)
