"""The most important items that fit, exactly: one knapsack of several, by branch and bound.

Each knapsack has a capacity and the items that may go into it; the best filling of any is wanted.
Both importance and seconds are whole numbers here, so sums are exact and no order changes them.

A knapsack that takes items by importance per second, and a part of the first that no longer fits
(the split item), is as important as any filling can be. Knapsacks whose bound is below what is
found already need no look. In the others, with L the importance per second of the split item,
taking or leaving item i against that order loses ``|I_i - L w_i|``. Fillings that lose more than
the bound is above the best one known cannot be better, and those that lose less differ from that
order in a few items next to the split one. So fillings grow item by item in the order of what
changing them loses; a filling is dropped if it lost too much, or if another one takes no more time
and is no less important.

D. Pisinger, "A minimal algorithm for the 0-1 knapsack problem", Operations Research 1997, has the
idea of a core that grows around the split item.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MOST_FILLINGS = 1 << 14  # kept at a time; a few hundred are enough for costs that are measured
MOST_TRIED = 1 << 20  # in all: a second or so
FEW_FILLINGS = 256  # that are not worth sorting


class Filling(NamedTuple):
    """What a knapsack has.

    Attributes:
        items: their numbers.
        missing: importance by which a better filling may be above this one: 0, unless the search
            had to be cut short.
    """

    items: list[int]
    missing: float


def best_filling(
    weights: IntArray, importance: IntArray, available: BoolArray, capacities: IntArray
) -> Filling:
    """Returns the most important filling of any of the knapsacks.

    Args:
        weights: of each item, at least 0. Their sum must be below 2^62.
        importance: of each item, more than 0. Their sum must be below 2^62.
        available: knapsacks x items: what may go into each.
        capacities: of each knapsack, at least 0.
    """
    with np.errstate(divide="ignore"):
        per_weight = importance / weights
    order = np.argsort(-per_weight, kind="stable")
    weights, importance, per_weight = weights[order], importance[order], per_weight[order]
    available = available[:, order]

    # In that order, all up to the split item are taken.
    summed = np.cumsum(np.where(available, weights, 0), axis=1)
    splits = (summed <= capacities[:, None]).sum(axis=1)
    before = np.arange(len(order)) < splits[:, None]
    left = capacities - np.where(available & before, weights, 0).sum(axis=1)
    taken = np.where(available & before, importance, 0).sum(axis=1)
    prices = np.append(per_weight, 0.0)[splits]
    bounds = taken + np.ceil(prices * left).astype(np.int64) + 1

    most, items, missing, tried = -1, np.empty(0, dtype=np.int64), 0.0, 0
    for number in np.argsort(-bounds, kind="stable").tolist():
        if bounds[number] <= most:
            break
        if tried > MOST_TRIED:
            missing = max(missing, float(bounds[number]))
            break
        own = np.flatnonzero(available[number])
        core = _Core(
            own, weights[own], importance[own], own < splits[number], float(prices[number])
        )
        better = core.search(int(left[number]), most - int(taken[number]))
        missing = max(missing, better.bound + float(taken[number]))
        tried += better.tried
        if better.items is not None:
            most, items = int(taken[number]) + better.gain, better.items
    return Filling(order[items].tolist(), max(0.0, missing - most))


class _Better(NamedTuple):
    """What a search found: items are None if nothing gains more than is asked for.

    ``bound`` is what fillings that had to be given up could gain at most, ``tried`` is how many
    there were.
    """

    gain: int
    items: IntArray | None
    bound: float
    tried: int


class _Core:
    """The fillings of one knapsack, as changes of one that takes all items before the split item.

    Args:
        items: their numbers.
        weights, importance: of each.
        is_taken: before the split item.
        price: importance per weight of the split item.
    """

    def __init__(
        self,
        items: IntArray,
        weights: IntArray,
        importance: IntArray,
        is_taken: BoolArray,
        price: float,
    ) -> None:
        self._price = price
        sign = np.where(is_taken, -1, 1)
        weights, importance = sign * weights, sign * importance
        losses = np.maximum(0.0, price * weights - importance)
        self._order = np.argsort(losses, kind="stable")
        self._items, self._is_taken = items, is_taken
        self._changes = list(
            zip(
                losses[self._order].tolist(),
                weights[self._order].tolist(),
                importance[self._order].tolist(),
                strict=True,
            )
        )

    def search(self, left: int, least: int) -> _Better:
        """Returns the changes that gain most, and more than ``least``.

        Args:
            left: the capacity that the items before the split item leave.
            least: importance to beat, relative to theirs.
        """
        best, best_at = least, None
        if least < 0:
            best, best_at = 0, (0, 0)
        weights = gains = np.zeros(1, dtype=np.int64)
        origins: list[IntArray] = []  # of the fillings of each turn: the numbers in the turn before
        limit, given_up = FEW_FILLINGS, -np.inf
        for turn, (loss, weight, gain) in enumerate(self._changes):
            bounds = gains + self._price * (left - weights)
            kept = np.flatnonzero(bounds - loss > best)
            if len(kept) == 0:
                break
            if len(kept) > limit:
                kept = _undominated(weights, gains, kept)
                if len(kept) > MOST_FILLINGS:
                    kept = kept[np.argsort(-bounds[kept], kind="stable")]
                    given_up = max(given_up, float(bounds[kept[MOST_FILLINGS]]))
                    kept = kept[:MOST_FILLINGS]
                limit = 2 * len(kept)
            without_weights, without_gains = weights[kept], gains[kept]
            with_weights, with_gains = without_weights + weight, without_gains + gain
            fitting = np.where(with_weights <= left, with_gains, best)
            at = int(np.argmax(fitting))
            if fitting[at] > best:
                best, best_at = int(fitting[at]), (turn + 1, len(kept) + at)
            weights = np.concatenate([without_weights, with_weights])
            gains = np.concatenate([without_gains, with_gains])
            origins.append(kept)
        items = None if best_at is None else self._traced_back(origins, *best_at)
        return _Better(best, items, given_up, sum(map(len, origins)))

    def _traced_back(self, origins: list[IntArray], turns: int, at: int) -> IntArray:
        """Returns the items of filling ``at`` after so many turns."""
        is_taken = self._is_taken.copy()
        for turn in reversed(range(turns)):
            kept = origins[turn]
            if at >= len(kept):
                is_taken[self._order[turn]] ^= True
                at -= len(kept)
            at = int(kept[at])
        return self._items[is_taken]


def _undominated(weights: IntArray, gains: IntArray, kept: IntArray) -> IntArray:
    """Returns those of the fillings that gain more than all that take no more time."""
    kept = kept[np.lexsort((-gains[kept], weights[kept]))]
    highest = np.maximum.accumulate(gains[kept])
    return kept[np.append(True, gains[kept[1:]] > highest[:-1])]
