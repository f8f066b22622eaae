"""Which items to train: the most important ones that fit into a step of given seconds.

In a chain, numbered from the output down, all items down to the deepest selected one, d, share the
dX seconds Y_d, so one knapsack that grows item by item serves every depth. With w_i the seconds and
I_i the importance of item i, c the seconds that the items may take, and B the budget::

    K_d(c) = max(K_{d-1}(c), K_{d-1}(c - w_d) + I_d)
    best   = max over d of K_d(B - Y_d)

That is exact in O(N T) for N items and T cells of time. (K_d need not select item d itself: if it
does not, the step takes less than it is charged with, and a lower d finds the same.)

In a network with branches, the closed set C of dX units that run takes the place of d: a union of
what some items need. An item is available in C if all it needs is in C, and the closed sets form a
tree in which each hangs below one that it contains. K_C is then the knapsack of the set above it,
grown by the items that C makes available, and best = max over C of K_C(B - Y_C).

``select_planned`` serves where only a plan knows what a step takes: an exchange that computing
hides costs nothing, one that it cannot hide all that sticks out, and what fits into a bubble of a
pipeline is free. Such seconds do not add up item by item. So items are selected as if they did, for
a virtual budget, and the plan says what the step really takes.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooodist.elastic.items import Selectable

logger = logging.getLogger("ooodist")

MAX_CLOSED_SETS = 512  # residual nets have a few hundred
SLACK = 1e-10  # of the budget: more than what sums of seconds are off, as floats are rounded


def select(
    choice: Selectable,
    importance: Sequence[float],
    budget: float,
    forced: Collection[int] = (),
    *,
    cells: int = 4096,
) -> frozenset[int]:
    """Returns the numbers of the items with the greatest summed importance that fit the budget.

    The seconds of each item are rounded up to cells of time, so the budget is kept (within 1e-10
    of it), and no selection that fits a budget smaller by one cell for each of its items is better.

    Args:
        choice: the items and what they cost.
        importance: of each item, in any unit; what is not positive is selected only if forced.
        budget: seconds of the whole step, ``choice.fixed_seconds`` included.
        forced: numbers of items that must be selected; if none, those next to the loss.
        cells: into which the seconds that the forced items leave are divided.

    Raises:
        ValueError: even the forced items alone take longer than the budget.
    """
    forced = always_selected(choice, forced)
    room = room_beside(choice, forced, budget)
    cell = room / cells or sys.float_info.min  # without room, only what takes no time has a place
    seconds = {
        number: item.seconds
        for number, item in enumerate(choice.items)
        if importance[number] > 0 and number not in forced and item.seconds <= room
    }
    weights = {number: math.ceil(seconds[number] / cell) for number in seconds}

    start = choice.units(forced)
    needs = charged = {number: choice.needs[number] for number in seconds}
    most = max(MAX_CLOSED_SETS, len(needs) + 1)
    root = _closed_sets(start, charged.values(), choice.seconds_of_units, room, most)
    if root is None:
        _warn_of_branches()
        nested = itertools.accumulate(needs.values(), operator.or_)
        charged = dict(zip(needs, nested, strict=True))
        root = _closed_sets(start, charged.values(), choice.seconds_of_units, room, most)
        assert root is not None, "Nested sets cannot be more than the items."
    selected = _knapsack(root, charged, weights, importance, cells, cell)

    # Rounding has left some room, and so has what was charged for units that do not run.
    running = choice.units(selected) | start
    left = room - choice.seconds_of_units(running & ~start)
    left -= sum(seconds[number] for number in selected)
    for number in sorted(needs, key=lambda number: seconds[number] / importance[number]):
        if number in selected or seconds[number] > left:
            continue
        with_path = seconds[number] + choice.seconds_of_units(needs[number] & ~running)
        if with_path <= left:
            selected.add(number)
            running |= needs[number]
            left -= with_path
    return forced | selected


def select_planned(
    propose: Callable[[float], frozenset[int]],
    seconds_of: Callable[[frozenset[int]], float],
    budget: float,
    *,
    least: float,
    most: float,
    rounds: int = 12,
) -> frozenset[int]:
    """Returns what is proposed for the largest virtual budget whose step fits the real one.

    Found by bisection. Where a larger virtual budget brings a shorter step, as may happen, a larger
    one than is found may fit too. What is returned always does.

    Args:
        propose: the best selection for a virtual budget, in seconds of a step.
        seconds_of: a step with a selection, as its plan predicts them. Asked once a selection.
        budget: seconds of a step.
        least, most: virtual budgets to search between.
        rounds: times that what is between them is halved.

    Raises:
        ValueError: not even what is proposed for the least virtual budget fits.
    """
    known: dict[frozenset[int], float] = {}

    def fits(selection: frozenset[int]) -> bool:
        if selection not in known:
            known[selection] = seconds_of(selection)
        return known[selection] <= budget * (1 + SLACK)

    found = propose(least)
    if not fits(found):
        raise ValueError(f"The least selection takes {known[found]} s, more than {budget} s.")
    largest = propose(most)
    if fits(largest):
        return largest
    too_much = most
    for _ in range(rounds):
        virtual = (least + too_much) / 2
        proposed = propose(virtual)
        if fits(proposed):
            least, found = virtual, proposed
        else:
            too_much = virtual
    return found


def least_seconds(choice: Selectable, forced: Collection[int] = ()) -> float:
    """Returns the seconds of a step with the forced items only: the smallest budget there is."""
    return choice.seconds(always_selected(choice, forced))


def always_selected(choice: Selectable, forced: Collection[int]) -> frozenset[int]:
    """Returns the forced items, or those next to the loss: a step that trains nothing is none."""
    return frozenset(forced or choice.head)


def room_beside(choice: Selectable, forced: Collection[int], budget: float) -> float:
    """Returns the seconds of the budget, and 1e-10 of it, that are left beside the forced items.

    Raises:
        ValueError: they take longer than the budget.
    """
    least = choice.seconds(forced)
    room = budget * (1 + SLACK) - least
    if room < 0:
        raise ValueError(f"The forced items take {least} s, which is more than {budget} s.")
    return room


@functools.cache  # one warning a process is enough: selections are made again and again
def _warn_of_branches() -> None:
    logger.warning(
        "The network has too many parallel branches to weigh each against each (more than %d sets "
        "of dX units). What is selected keeps its time, but may not be the best there is.",
        MAX_CLOSED_SETS,
    )


@dataclass(frozen=True)
class _Closed:
    """A closed set of dX units, and those that hang below it.

    Attributes:
        units: as bits.
        seconds: of those that do not run for the forced items anyway.
        below: larger ones.
    """

    units: int
    seconds: float
    below: list[_Closed] = field(default_factory=list)


def _closed_sets(
    start: int,
    needs: Iterable[int],
    seconds_of: Callable[[int], float],
    room: float,
    most: int,
) -> _Closed | None:
    """Returns a tree of all unions of the needs with the start that there is room for.

    Args:
        start: the units that run anyway.
        needs: of each item, as bits.
        seconds_of: units.
        room: seconds.
        most: sets that there may be. None is returned if there are more.
    """
    found = {start: _Closed(start, 0.0)}
    seen = {start}  # also those without room
    largest = start
    for needed in sorted(set(needs), key=int.bit_count):  # from the output down
        in_chain = largest | needed == needed  # it holds all others, and is all there is to try
        unions = ({needed} if in_chain else {units | needed for units in found}) - seen
        seen |= unions
        largest |= needed
        for units in sorted(unions, key=int.bit_count):
            # The latest inside is large, so that few items are to be added to its knapsack.
            above = next(inside for inside in reversed(found) if inside | units == units)
            seconds = found[above].seconds + seconds_of(units & ~above)
            if seconds <= room:
                found[units] = _Closed(units, seconds)
                found[above].below.append(found[units])
        if len(found) > most:
            return None
    return found[start]


class _Row(NamedTuple):
    """Where a knapsack takes an item: ``taken[c - weight]`` says whether c cells have it."""

    number: int
    weight: int
    taken: npt.NDArray[np.bool_]
    before: _Row | None


def _knapsack(
    root: _Closed,
    needs: Mapping[int, int],
    weights: Mapping[int, int],
    importance: Sequence[float],
    cells: int,
    cell: float,
) -> set[int]:
    """Returns the most important items that fit together with the best closed set for them.

    Args:
        root: of the closed sets.
        needs: units of each item that can be selected, as bits.
        weights: of these items, in cells.
        importance: of each item.
        cells: of time for items and dX units.
        cell: seconds of one.
    """
    most, most_cells, most_rows = 0.0, 0, None
    nothing = np.zeros(cells + 1)
    none: _Row | None = None
    todo = [(root, nothing, list(needs.items()), none)]
    while todo:  # depth first, so that few knapsacks live at a time
        closed, above, missing, rows = todo.pop()
        num_cells = max(0, math.floor(cells - closed.seconds / cell))
        best = above[: num_cells + 1].copy()
        idle = ~closed.units
        available = [number for number, units in missing if not units & idle]
        for number in available:
            weight = weights[number]
            if weight <= num_cells:
                without = best[weight:]
                with_it = best[: num_cells + 1 - weight] + importance[number]
                rows = _Row(number, weight, with_it > without, rows)
                np.maximum(without, with_it, out=without)
        if best[num_cells] > most:
            most, most_cells, most_rows = best[num_cells], num_cells, rows
        if closed.below:
            missing = [item for item in missing if item[1] & idle]
            todo += [(below, best, missing, rows) for below in closed.below]
    return _traced_back(most_rows, most_cells)


def _traced_back(row: _Row | None, num_cells: int) -> set[int]:
    """Returns the items that a knapsack of this many cells has."""
    selected = set()
    while row is not None:
        if row.weight <= num_cells and row.taken[num_cells - row.weight]:
            selected.add(row.number)
            num_cells -= row.weight
        row = row.before
    return selected
