"""Decomposes a model's operators into a series of single operators and parallel branches, nested.

The graph has a virtual source before the operators that read nothing, and a virtual sink after
those that nothing reads. Operators on all paths from the source to the sink are the elements of
the outermost series. What lies between two of them is a parallel, whose branches are not connected
with one another, and each branch is a series again::

    conv ---> conv -> norm ---> add -> relu        [conv, (conv norm | ), add, relu]
          `-------------------'

An edge from the fork straight to the join is an empty branch. A region that can be split in neither
way, because edges cross from branch to branch, is taken as a series in an order that does not
depend on how its operators are numbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ooodist.transfer.graph.operators import Outline
from ooodist.util.digest import digest


@dataclass(frozen=True)
class Parallel:
    """Branches between a fork and a join.

    Attributes:
        branches: numbers of their series, in the order of the first operator of each. Empty
            branches are left out.
    """

    branches: tuple[int, ...]


Element = int | Parallel  # the number of an operator, or branches
Series = tuple[Element, ...]


def decompose(outline: Outline) -> tuple[Series, ...]:
    """All series of a model: inner ones before those that contain them, the outermost last.

    Each operator is an element of exactly one. Takes O(edges) for each level of nesting.
    """
    readers: list[list[int]] = [[] for _ in outline]
    for number, each in enumerate(outline):
        for read in set(each.inputs):
            readers[read].append(number)
    found: list[list[Element]] = []
    todo = [list(range(len(outline)))]
    while len(found) < len(todo):  # no recursion: nets may be nested deeply
        series: list[Element] = []
        for element in _elements(todo[len(found)], outline, readers):
            if isinstance(element, int):
                series.append(element)
            else:
                series.append(Parallel(tuple(range(len(todo), len(todo) + len(element)))))
                todo += element
        found.append(series)
    last = len(found) - 1

    def renumbered(element: Element) -> Element:
        if isinstance(element, int):
            return element
        return Parallel(tuple(last - branch for branch in element.branches))

    return tuple(tuple(map(renumbered, series)) for series in reversed(found))


def _elements(
    region: Sequence[int], outline: Outline, readers: Sequence[Sequence[int]]
) -> list[int | list[list[int]]]:
    """The elements of a region in a row: operators, and branches as lists of operators.

    Args:
        region: ascending numbers of operators. What they read outside of it is the fork, what reads
            them outside of it the join; an edge from fork to join is not part of it.
        outline: all operators.
            readers: the readers of each operator.
    """
    place = {number: place for place, number in enumerate(region)}
    end = len(region)
    from_fork = [
        not outline[number].inputs or not all(read in place for read in outline[number].inputs)
        for number in region
    ]
    farthest = [  # place of the last reader, where the join is at the end
        max((place.get(reader, end) for reader in readers[number]), default=end)
        for number in region
    ]
    elements: list[int | list[list[int]]] = []
    reach = max((at for at in range(end) if from_fork[at]), default=0)
    before = -1  # place of the last element on all paths; the fork is at -1
    for at in range(end + 1):
        if at == end or reach <= at:  # no edge goes past it, so all paths contain it
            between = region[before + 1 : at]
            if between:
                if before < 0:
                    straight = at < end and from_fork[at]
                elif at == end:
                    straight = farthest[before] == end
                else:
                    straight = region[before] in outline[region[at]].inputs
                branches = _connected(between, outline)
                if len(branches) > 1 or straight:
                    elements.append(branches)
                else:
                    elements += _in_a_row(between, outline, readers)
            if at < end:
                elements.append(region[at])
            before = at
        if at < end:
            reach = max(reach, farthest[at])
    return elements


def _connected(numbers: Sequence[int], outline: Outline) -> list[list[int]]:
    """The connected parts of a region, in the order of their first operators."""
    part = {number: number for number in numbers}

    def root(number: int) -> int:
        while part[number] != number:
            part[number] = part[part[number]]
            number = part[number]
        return number

    for number in numbers:
        for read in outline[number].inputs:
            if read in part:
                one, other = sorted((root(number), root(read)))
                part[other] = one
    found: dict[int, list[int]] = {}
    for number in numbers:
        found.setdefault(root(number), []).append(number)
    return list(found.values())


def _in_a_row(
    numbers: Sequence[int], outline: Outline, readers: Sequence[Sequence[int]]
) -> list[int]:
    """A region in a topological order that is the same however it is numbered.

    What the last operator has made ready comes next, so that chains stay together; among several,
    the one with the longest path to the end. That order changes little if the region grows.
    """
    inside = set(numbers)
    inputs = {number: sorted(inside.intersection(outline[number].inputs)) for number in numbers}
    outputs = {number: [each for each in readers[number] if each in inside] for number in numbers}
    height = dict.fromkeys(numbers, 0)
    for number in reversed(numbers):
        height[number] = max((height[each] + 1 for each in outputs[number]), default=0)
    color = _colors(numbers, outline, inputs, outputs)

    def last_first(ready: Iterable[int]) -> list[int]:
        return sorted(
            ready, key=lambda each: (-height[each], outline[each].op, color[each]), reverse=True
        )

    missing = {number: len(inputs[number]) for number in numbers}
    ready = last_first(number for number in reversed(numbers) if not missing[number])
    row = []
    while ready:
        number = ready.pop()
        row.append(number)
        for reader in outputs[number]:
            missing[reader] -= 1
        ready += last_first(reader for reader in reversed(outputs[number]) if not missing[reader])
    return row


def _colors(
    numbers: Sequence[int],
    outline: Outline,
    inputs: dict[int, list[int]],
    outputs: dict[int, list[int]],
) -> dict[int, int]:
    """A number for each operator that depends only on what it is and is connected to.

    It begins with all that precedes and follows the operator, and is refined by the numbers of its
    neighbors (as in the test of Weisfeiler and Lehman) until that tells no more operators apart.
    """

    def digests(order: Iterable[int], neighbors: dict[int, list[int]]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for number in order:
            own = f"{outline[number].op} {outline[number].shapes}".encode()
            near = b"".join(sorted(found[each] for each in neighbors[number]))
            found[number] = digest(own + near)
        return found

    before, behind = digests(numbers, inputs), digests(reversed(numbers), outputs)
    color = _ranks({number: (before[number], behind[number]) for number in numbers})
    while True:
        finer = _ranks(
            {
                number: (
                    color[number],
                    sorted(color[each] for each in inputs[number]),
                    sorted(color[each] for each in outputs[number]),
                )
                for number in numbers
            }
        )
        if max(finer.values()) == max(color.values()):
            return color
        color = finer


def _ranks(keys: dict[int, tuple[Any, ...]]) -> dict[int, int]:
    """0 for all with the smallest key, 1 for the next, and so on."""
    ordered = sorted(keys, key=keys.__getitem__)
    ranks: dict[int, int] = {}
    rank = 0
    for place, number in enumerate(ordered):
        rank += place > 0 and keys[number] != keys[ordered[place - 1]]
        ranks[number] = rank
    return ranks
