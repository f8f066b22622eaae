"""Selects the items to train: the most important ones that fit into a step of given seconds.

In a chain, numbered from the output down, all items down to the deepest selected one, d, share the
dX seconds Y_d. With w_i the seconds and I_i the importance of item i, and B the budget::

    best = max over d of the knapsack of items 1 to d with capacity B - Y_d

In a network with branches, a closed set C of dX units that run takes the place of d: a union of the
needs of some items. An item is available in C if all its needs are in C. (A selection may need less
than all of C: its step then takes less than it is charged for, and a smaller set finds the same
selection.) ``ooodist.elastic.selection.closed_sets`` finds the sets that may be the best, and
``ooodist.elastic.selection.knapsack`` the best of their knapsacks, both exactly.

``select_planned`` is for steps whose time only a plan can predict: an exchange costs only the part
that computation does not hide, and work that fits into a bubble of a pipeline is free. Such seconds
do not add up item by item. So items are selected as if they did, for a virtual budget, and the plan
predicts the actual seconds of the step.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from ooodist.elastic.selection.closed_sets import FloatArray, Network, Search
from ooodist.elastic.selection.items import Selectable
from ooodist.elastic.selection.knapsack import Filling, IntArray, best_filling

logger = logging.getLogger("ooodist")

BISECTIONS = 12  # in the search for the largest budget whose step fits
# Closed sets whose fillings are compared: more and more, until none that may be better is left out.
MOST_SETS = 64, 512, 2048
MOST_PRICES = 64
ROUNDING = 2.0**-40  # relative error of sums of floats, with a margin
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
    greatest. If there are too many selections to be sure, a warning says how far the best may be
    above this one.

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
    filling = _best(
        start,
        [choice.needs[number] | start for number in numbers],
        {1 << bit: to_cells(s) for bit, s in enumerate(choice.path_seconds.values())},
        np.array([to_cells(choice.items[number].seconds) for number in numbers]),
        np.array([max(1, to_units(importance[number])) for number in numbers]),
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


def _best(
    start: int,
    needs: Sequence[int],
    cells: Mapping[int, int],
    weights: IntArray,
    importance: IntArray,
) -> Filling:
    """The best filling of what any closed set leaves of the room of 2^PRECISION cells.

    Args:
        start: the units that run anyway, as a bit mask. They take no cells.
        needs: the needs of each item, as bit masks that contain ``start``.
        cells: the cells (scaled seconds) of each unit, by its bit.
        weights: the cells of each item's own seconds.
        importance: the scaled importance of each item.
    """
    room = 1 << PRECISION
    groups = sorted(set(needs), key=lambda units: (units.bit_count(), units))
    number = {units: place for place, units in enumerate(groups)}
    group_of = np.array([number[units] for units in needs])
    prices = _prices(weights, importance, room)
    worth = np.zeros((len(groups), len(prices)))
    own = importance[:, None] - np.multiply.outer(weights, prices)
    np.add.at(worth, group_of, np.maximum(0.0, own))
    network = Network(start, groups, cells, worth, prices, room)
    rounding = ROUNDING * float(importance.sum())
    best: list[int] = []
    most, missing = 0, 0.0
    for place, most_sets in enumerate(MOST_SETS):
        search = Search(room, most - rounding, most_sets, is_coarse=place == 0)
        sets = network.sets(prices * room, search)
        filling = best_filling(weights, importance, sets.has[:, group_of], room - sets.cells)
        total = int(importance[filling.items].sum())
        if total >= most:
            best, most = filling.items, total
        dropped = search.dropped - rounding
        missing = max(total + filling.missing, dropped) - most
        if dropped <= most:
            break
    return Filling(best, max(0.0, missing))


def _prices(weights: IntArray, importance: IntArray, room: int) -> FloatArray:
    """Prices near which that of each closed set's best filling is: importance per cell.

    They are those of some of the items, and others for items that take no time beside their units.
    """
    ratios = np.sort(importance[weights > 0] / weights[weights > 0])
    some = ratios[np.linspace(0, len(ratios) - 1, MOST_PRICES).astype(int)] if len(ratios) else []
    others = float(importance.sum()) / room * 2.0 ** np.arange(-4, 5)
    return np.unique(np.concatenate([[0.0], some, others]))
