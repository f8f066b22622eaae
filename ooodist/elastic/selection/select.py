"""Selects the items to train: the most important ones that fit into a step of given seconds.

In a chain, numbered from the output down, all items down to the deepest selected one, d, share the
dX seconds Y_d. With w_i the seconds and I_i the importance of item i, and B the budget::

    best = max over d of the knapsack of items 1 to d with capacity B - Y_d

In a network with branches, a closed set C of dX units that run takes the place of d: a union of the
needs of some items. An item is available in C if all its needs are in C. (A selection may need less
than all of C: its step then takes less than it is charged for, and a smaller set finds the same
selection.) ``ooodist.elastic.selection.knapsack`` finds the best of these knapsacks exactly.

``select_planned`` is for steps whose time only a plan can predict: an exchange costs only the part
that computation does not hide, and work that fits into a bubble of a pipeline is free. Such seconds
do not add up item by item. So items are selected as if they did, for a virtual budget, and the plan
predicts the actual seconds of the step.
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ooodist.elastic.selection.items import Selectable
from ooodist.elastic.selection.knapsack import best_filling

logger = logging.getLogger("ooodist")

BISECTIONS = 12  # in the search for the largest budget whose step fits
MAX_CLOSED_SETS = 4096  # residual networks have a few hundred
SLACK = 1e-10  # share of the budget; exceeds the rounding error of sums of seconds
PRECISION = 46  # bits of the greatest importance and of the room: sums of 2^16 of them are exact


def select(
    choice: Selectable,
    importance: Sequence[float],
    budget: float,
    forced: Collection[int] = (),
) -> frozenset[int]:
    """The numbers of the items with the greatest summed importance that fit the budget.

    The budget is exceeded by at most 1e-10 of it, and importance is resolved to 2^-46 of the
    greatest. All ranks find the same selection on any processor, as only integers are summed.

    Args:
        choice: the items and their costs.
        importance: the importance of each item, in any unit; selected only if positive, or forced.
        budget: seconds of the whole step, including ``choice.fixed_seconds``.
        forced: numbers of items that must be selected; if empty, those next to the loss.

    Raises:
        ValueError: the forced items alone take longer than the budget.
    """
    forced = always_selected(choice, forced)
    room = room_beside(choice, forced, budget)
    numbers = [
        number
        for number, item in enumerate(choice.items)
        if importance[number] > 0 and number not in forced and item.seconds <= room
    ]
    if not numbers:
        return forced
    to_cells = _whole(room)
    to_units = _whole(max(importance[number] for number in numbers))
    start = choice.units(forced)
    cells = {1 << bit: to_cells(s) for bit, s in enumerate(choice.path_seconds.values())}
    needs = [choice.needs[number] | start for number in numbers]
    closed = _closed_sets(start, needs, cells, max(MAX_CLOSED_SETS, len(numbers) + 1))
    if closed is None:
        _warn_of_branches()
        needs = list(itertools.accumulate(needs, operator.or_))
        closed = _closed_sets(start, needs, cells, len(numbers) + 1)
        assert closed is not None, "Nested sets cannot be more than the items."
    filling = best_filling(
        np.array([to_cells(choice.items[number].seconds) for number in numbers]),
        np.array([max(1, to_units(importance[number])) for number in numbers]),
        _available(closed, needs),
        (1 << PRECISION) - np.array(list(closed.values())),
    )
    if filling.missing:
        logger.warning(
            "Too many selections are alike to weigh each against each: the one that is taken may "
            "be below the best by %.2g of the most important tensor.",
            filling.missing / (1 << PRECISION),
        )
    return forced | {numbers[at] for at in filling.items}


def select_planned(
    propose: Callable[[float], frozenset[int]],
    seconds_of: Callable[[frozenset[int]], float],
    budget: float,
    *,
    least: float,
    most: float,
) -> frozenset[int]:
    """The selection for the largest virtual budget whose step fits the actual budget.

    It is found by bisection. A larger virtual budget can lead to a shorter step, so one larger than
    the one found may fit too; the selection returned always fits.

    Args:
        propose: returns the best selection for a virtual budget, in seconds of a step.
        seconds_of: returns the planned seconds of a selection's step; called once per selection.
        budget: the actual budget in seconds of a step.
        least, most: the virtual budgets between which to search, in seconds.

    Raises:
        ValueError: not even the selection for the least virtual budget fits.
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
    for _ in range(BISECTIONS):
        virtual = (least + too_much) / 2
        proposed = propose(virtual)
        if fits(proposed):
            least, found = virtual, proposed
        else:
            too_much = virtual
    return found


def least_seconds(choice: Selectable, forced: Collection[int] = ()) -> float:
    """The seconds of a step with the forced items only: the smallest possible budget."""
    return choice.seconds(always_selected(choice, forced))


def always_selected(choice: Selectable, forced: Collection[int]) -> frozenset[int]:
    """The forced items, or if there are none, those next to the loss: a step must train."""
    return frozenset(forced or choice.head)


def room_beside(choice: Selectable, forced: Collection[int], budget: float) -> float:
    """The seconds that the forced items leave of the budget plus 1e-10 of it.

    Raises:
        ValueError: the forced items take longer than that.
    """
    least = choice.seconds(forced)
    room = budget * (1 + SLACK) - least
    if room < 0:
        raise ValueError(f"The forced items take {least} s, which is more than {budget} s.")
    return room


def _whole(largest: float) -> Callable[[float], int]:
    """A function that scales floats to integers; ``largest`` becomes 2^PRECISION."""
    if largest < sys.float_info.min:  # no room: only items that take no time fit
        return lambda value: 0 if value <= largest else (1 << PRECISION) + 1
    return lambda value: round(min(value / largest, 2.0) * (1 << PRECISION))


@functools.cache  # one warning per process is enough: selections are made again and again
def _warn_of_branches() -> None:
    logger.warning(
        "The network has too many parallel branches to weigh each against each (more than %d sets "
        "of dX units). What is selected keeps its time, but may not be the best there is.",
        MAX_CLOSED_SETS,
    )


def _closed_sets(
    start: int, needs: Sequence[int], cells: Mapping[int, int], most: int
) -> dict[int, int] | None:
    """The cells (scaled seconds) of each union of ``start`` with needs that fits the room.

    Args:
        start: the units that run anyway, as a bit mask. They take no cells.
        needs: the needs of each item, as bit masks.
        cells: the cells of each unit, by its bit. The room is 2^PRECISION cells.
        most: the most sets allowed; None is returned if there are more.
    """
    found = {start: 0}
    largest, largest_cells = start, 0
    for needed in sorted(set(needs), key=int.bit_count):  # from the output down
        missing = needed & ~largest
        if largest | needed == needed:  # it contains all others, so its only union is itself
            largest, largest_cells = needed, largest_cells + _cells_of(missing, cells)
            if largest_cells <= 1 << PRECISION:
                found[needed] = largest_cells
            continue
        for units, own in list(found.items()):
            if units | needed not in found:
                both = own + _cells_of(needed & ~units, cells)
                if both <= 1 << PRECISION:
                    found[units | needed] = both
        largest |= needed
        largest_cells += _cells_of(missing, cells)
        if len(found) > most:
            return None
    return found


def _cells_of(units: int, cells: Mapping[int, int]) -> int:
    found = 0
    while units:
        lowest = units & -units
        found += cells[lowest]
        units ^= lowest
    return found


def _available(closed: Collection[int], needs: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Whether each set contains all needs of each item, of shape (closed sets, items)."""
    num_words = 1 + functools.reduce(operator.or_, (*closed, *needs)).bit_length() // 64

    def words(sets: Iterable[int]) -> npt.NDArray[np.uint64]:
        packed = b"".join(units.to_bytes(8 * num_words, "little") for units in sets)
        return np.frombuffer(packed, "<u8").reshape(-1, num_words)

    lacks = np.zeros((len(closed), len(needs)), dtype=np.uint64)
    for idle, needed in zip(~words(closed).T, words(needs).T, strict=True):
        lacks |= idle[:, None] & needed
    return lacks == 0
