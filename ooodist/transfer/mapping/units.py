"""Maps each unit of the child to the unit of the parent that it comes from.

Spaces are paired by the operators that match: if two convolutions match, so do the channels that
they read and those that they make. All weights whose axes run over a space then use one map, so
that units stay whole::

    wider     0 1 2 3 4     narrower    0 1       the two of the largest norm
              0 1 2 0 1                 0 2       (Net2Net, Chen et al. 2016, section 2)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ooodist.transfer.graph.graph import Axis, Graph, Segment, Weight

NOTHING = -1
"""In a map: the parent has no such unit."""

Pairs = Sequence[tuple[int, int]]
Values = Mapping[str, np.ndarray]


class UnitMaps:
    """The maps from a child's units to its parent's.

    Args:
        child, parent: the two models.
        pairs: numbers of the operators that match.
        values: the parent's weights, by name; they decide which units a narrower child leaves out.
    """

    def __init__(self, child: Graph, parent: Graph, pairs: Pairs, values: Values) -> None:
        self._child, self._parent = child, parent
        self._values = values
        self._partners = _partners(child, parent, pairs)
        self._maps: dict[tuple[int, int], np.ndarray] = {}
        self._norms: dict[int, np.ndarray] | None = None
        self._inherited: set[int] = set()

    def partner(self, space: int) -> int | None:
        """The parent's space that a space of the child comes from, if any."""
        return self._partners.get(space)

    def size(self, space: int) -> int:
        """The number of units of a space of the child."""
        return self._child.spaces[space].size

    def source_size(self, space: int) -> int:
        """The number of units of a space of the parent."""
        return self._parent.spaces[space].size

    def replace(self, space: int, source: int, units: np.ndarray) -> None:
        """Replaces the map that :meth:`units` returns."""
        self._maps[space, source] = units

    def inherit(self, space: int, source: int) -> None:
        """Maps a new operator's space to where the space that it reads comes from."""
        found = self._partners.get(source)
        if space not in self._partners and found is not None:
            self._partners[space] = found
            self._inherited.add(space)

    def is_new(self, space: int) -> bool:
        """Whether no matching operators make or read the units of a space."""
        return space not in self._partners or space in self._inherited

    def units(self, space: int, source: int) -> np.ndarray:
        """Finds for each unit of a child's space its unit in a parent's space, or NOTHING."""
        if (space, source) not in self._maps:
            self._maps[space, source] = self._units(space, source)
        return self._maps[space, source]

    def _units(self, space: int, source: int) -> np.ndarray:
        mine, its = self._child.spaces[space], self._parent.spaces[source]
        every = np.arange(mine.size)
        if mine.size == its.size:
            return every
        kinds = {mine.kind, its.kind}
        if "output" in kinds and not (mine.averaged and its.averaged):  # different classes
            return np.full(mine.size, NOTHING)
        if "fixed" in kinds or ("input" in kinds and its.size > 1):
            return np.where(every < its.size, every, NOTHING)
        if mine.size > its.size:
            return every % its.size
        return np.sort(np.argsort(-self._norm(source), kind="stable")[: mine.size])

    def _norm(self, space: int) -> np.ndarray:
        if self._norms is None:
            self._norms = _norms(self._parent, self._values)
        return self._norms[space]

    def axis(self, mine: Axis, its: Axis) -> np.ndarray:
        """Finds for each index of a child's axis its index on the parent's axis, or NOTHING."""
        if not mine.segments or not its.segments:
            every = np.arange(mine.size)
            return np.where(every < its.size, every, NOTHING)
        if self._are_parts(mine, its):
            return self._merged(mine, its)
        starts = _starts(self._parent, its.segments)
        sources = self._sources(mine.segments, its.segments)
        found = [
            self._stretch(segment, source, its.segments, starts)
            for segment, source in zip(mine.segments, sources, strict=True)
        ]
        return np.concatenate(found)

    def _are_parts(self, mine: Axis, its: Axis) -> bool:
        """Whether only one of the models splits a space into parts, as group norms do."""
        if len(mine.segments) == len(its.segments):
            return False
        if any(segment.space in self._partners for segment in mine.segments):
            return False
        if any(each.place or each.inner != 1 for each in (*mine.segments, *its.segments)):
            return False
        spaces = [self._child.spaces[each.space] for each in mine.segments]
        spaces += [self._parent.spaces[each.space] for each in its.segments]
        if len({space.size for space in spaces}) == 1:  # more of the same parts
            return False
        return mine.size == its.size or all(space.kind == "units" for space in spaces)

    def _merged(self, mine: Axis, its: Axis) -> np.ndarray:
        """Maps an axis as if all of its segments were one space."""
        if mine.size >= its.size:
            return np.arange(mine.size) % its.size
        norms = np.concatenate([self._norm(segment.space) for segment in its.segments])
        return np.sort(np.argsort(-norms, kind="stable")[: mine.size])

    def _stretch(
        self,
        segment: Segment,
        source: int | None,
        segments: Sequence[Segment],
        starts: Sequence[int],
    ) -> np.ndarray:
        size = self._child.spaces[segment.space].size * segment.inner
        if source is None:
            return np.full(size, NOTHING)
        units = self.units(segment.space, segments[source].space)
        inner = segments[source].inner
        indices = units[:, None] * inner + np.arange(segment.inner) % inner
        indices = np.where(units[:, None] == NOTHING, NOTHING, starts[source] + indices)
        return indices.reshape(-1)

    def _sources(self, mine: Sequence[Segment], its: Sequence[Segment]) -> list[int | None]:
        """Finds for each segment of the child the number of its segment on the parent's axis."""
        if len(mine) == len(its):
            return [*range(len(its))]
        by_key: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        for number, segment in enumerate(its):
            by_key[segment.space, segment.place].append(number)
        known = [self._partners.get(segment.space) for segment in mine]
        if all(partner is None for partner in known):  # one model has more parts of a space
            return [number % len(its) for number in range(len(mine))]
        used: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
        sources: list[int | None] = []
        for segment, partner in zip(mine, known, strict=True):
            place = _nearest(segment, its[0].grid)
            candidates = [] if partner is None else by_key[partner, place]
            key = (segment.space, partner or 0, segment.place)
            times = used[key]  # the same tensor may have been concatenated twice
            used[key] += 1
            sources.append(candidates[min(times, len(candidates) - 1)] if candidates else None)
        return sources


def _nearest(segment: Segment, grid: tuple[int, ...]) -> tuple[int, ...]:
    """The place of a segment on a grid of other sizes."""
    if len(grid) != len(segment.grid):
        return (0,) * len(grid)
    return tuple(
        int((place + 0.5) * size / before)
        for place, before, size in zip(segment.place, segment.grid, grid, strict=True)
    )


def _starts(graph: Graph, segments: Iterable[Segment]) -> list[int]:
    """The index at which each segment begins, and the end of the last one."""
    sizes = [graph.spaces[segment.space].size * segment.inner for segment in segments]
    return [0, *np.cumsum(sizes).tolist()]


def common_weights(
    child: Graph, parent: Graph, pairs: Pairs
) -> Iterable[tuple[int, int, Weight, Weight]]:
    """Yields the weights that two matching operators both have, with the operators' numbers."""
    for mine, its in pairs:
        others = {weight.kind: weight for weight in parent.nodes[its].weights}
        for weight in child.nodes[mine].weights:
            other = others.get(weight.kind)
            if other is not None and len(other.axes) == len(weight.axes):
                yield mine, its, weight, other


def _partners(child: Graph, parent: Graph, pairs: Pairs) -> dict[int, int]:
    """Finds for each space of the child the parent's space that most weights pair it with."""
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for _, _, weight, other in common_weights(child, parent, pairs):
        for mine, its in zip(weight.axes, other.axes, strict=True):
            if len(mine.segments) == len(its.segments):
                for one, two in zip(mine.segments, its.segments, strict=True):
                    votes[one.space][two.space] += 1
    return {space: counter.most_common(1)[0][0] for space, counter in votes.items()}


def _norms(graph: Graph, values: Values) -> dict[int, np.ndarray]:
    """How much each unit of each space matters: the norm of what makes it and reads it.

    A batch norm rescales its input, so after one its gamma counts as what makes a unit.
    """
    made = {s: np.zeros(space.size) for s, space in enumerate(graph.spaces)}
    scaled = {s: np.zeros(space.size) for s, space in enumerate(graph.spaces)}
    read = {s: np.zeros(space.size) for s, space in enumerate(graph.spaces)}
    for node in graph.nodes:
        for weight in node.weights:
            if weight.kind == "gamma":
                kinds = {"unit": scaled}
            elif weight.kind in ("moving_mean", "moving_variance", "beta"):
                continue
            else:
                kinds = {"out": made, "in": read, "unit": made}
            square = np.square(values[weight.name].astype(np.float64))
            for number, axis in enumerate(weight.axes):
                if axis.role not in kinds or not axis.segments:
                    continue
                others = tuple(a for a in range(square.ndim) if a != number)
                _add(graph, kinds[axis.role], axis, square.sum(axis=others))
    return {
        s: np.sqrt(np.where(scaled[s].any(), scaled[s], made[s]) * _or_ones(read[s])) for s in made
    }


def _or_ones(values: np.ndarray) -> np.ndarray:
    return values if values.any() else np.ones_like(values)


def _add(graph: Graph, sums: dict[int, np.ndarray], axis: Axis, values: np.ndarray) -> None:
    starts = _starts(graph, axis.segments)
    for segment, start in zip(axis.segments, starts, strict=False):
        space = graph.spaces[segment.space]
        part = values[start : start + space.size * segment.inner]
        sums[segment.space] += part.reshape(space.size, segment.inner).sum(axis=1)
