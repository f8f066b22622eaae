"""Finds the most important filling of any of several knapsacks exactly, by branch and bound.

Each knapsack has a capacity and a set of items that may go into it. Both importance and weights
(seconds) are whole numbers here, so sums are exact and do not depend on their order.

Taking items by importance per second, and a fraction of the first that no longer fits (the split
item), gives an upper bound of what a knapsack can hold. Knapsacks whose bound is below the best
filling known are skipped. In the others, with L the importance per second of the split item, taking
or leaving item i against that order loses ``|I_i - L w_i|``. A filling that loses more than the
bound exceeds the best one known cannot be better, and one that loses less differs from that order
in only a few items near the split one. So fillings are extended item by item in the order of those
losses; a filling is dropped if it has lost too much, or if another one takes no more time and is no
less important.

The core that grows around the split item is from D. Pisinger, "A minimal algorithm for the 0-1
knapsack problem", Operations Research 1997.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MOST_FILLINGS = 1 << 14  # kept at a time; a few hundred are enough for measured costs
MOST_TRIED = 1 << 20  # in total: about a second
FEW_FILLINGS = 256  # up to so many are not worth sorting


class Filling(NamedTuple):
    """The best filling found.

    Attributes:
        items: the numbers of its items.
        missing: by how much importance a better filling may exceed this one; 0 unless the search
            had to be cut short.
    """

    items: list[int]
    missing: float


def best_filling(
    weights: IntArray,
    importance: IntArray,
    available: BoolArray,
    capacities: IntArray,
    most_tried: int | None = None,
) -> Filling:
    """The most important filling of any of the knapsacks.

    Args:
        weights: the weight of each item, at least 0; the sum must be below 2^62.
        importance: the importance of each item, more than 0; the sum must be below 2^62.
        available: which items may go into each knapsack, of shape (knapsacks, items).
        capacities: the capacity of each knapsack, at least 0.
        most_tried: the fillings of one knapsack after which its search is cut short; None: never.
    """
    with np.errstate(divide="ignore"):
        per_weight = importance / weights
    order = np.argsort(-per_weight, kind="stable")
    weights, importance, per_weight = weights[order], importance[order], per_weight[order]
    available = available[:, order]

    # In that order, all items before the split item are taken.
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
        better = core.search(int(left[number]), most - int(taken[number]), most_tried)
        missing = max(missing, better.bound + float(taken[number]))
        tried += better.tried
        if better.items is not None:
            most, items = int(taken[number]) + better.gain, better.items
    return Filling(order[items].tolist(), max(0.0, missing - most))


class _Better(NamedTuple):
    """The result of a search; ``items`` is None if nothing gains more than was asked for.

    ``bound`` is the most that fillings that had to be given up could gain; ``tried`` is the number
    of fillings tried.
    """

    gain: int
    items: IntArray | None
    bound: float
    tried: int


class _Core:
    """The fillings of one knapsack, as changes to the one with all items before the split item.

    Args:
        items: the numbers of the available items.
        weights, importance: the weight and importance of each item.
        is_taken: whether each item comes before the split item.
        price: the importance per weight of the split item.
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

    def search(self, left: int, least: int, most_tried: int | None = None) -> _Better:
        """The filling that gains most, if it gains more than ``least``.

        Args:
            left: the capacity left beside the items before the split item.
            least: the importance to beat, relative to that of those items.
            most_tried: the number of fillings after which it gives up; None: never.
        """
        best, best_at = least, None
        if least < 0:
            best, best_at = 0, (0, 0)
        weights = gains = np.zeros(1, dtype=np.int64)
        origins: list[IntArray] = []  # for each turn, the fillings it kept of those before it
        limit, given_up, tried = FEW_FILLINGS, -np.inf, 0
        for turn, (loss, weight, gain) in enumerate(self._changes):
            bounds = gains + self._price * (left - weights)
            kept = np.flatnonzero(bounds - loss > best)
            if len(kept) == 0:
                break
            if most_tried is not None and tried > most_tried:
                given_up = max(given_up, float(bounds[kept].max()))
                break
            tried += len(kept)
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
        return _Better(best, items, given_up, tried)

    def _traced_back(self, origins: list[IntArray], turns: int, at: int) -> IntArray:
        """The items of filling number ``at`` after so many turns."""
        is_taken = self._is_taken.copy()
        for turn in reversed(range(turns)):
            kept = origins[turn]
            if at >= len(kept):
                is_taken[self._order[turn]] ^= True
                at -= len(kept)
            at = int(kept[at])
        return self._items[is_taken]


def _undominated(weights: IntArray, gains: IntArray, kept: IntArray) -> IntArray:
    """The fillings that gain more than every other that weighs no more."""
    kept = kept[np.lexsort((-gains[kept], weights[kept]))]
    highest = np.maximum.accumulate(gains[kept])
    return kept[np.append(True, gains[kept[1:]] > highest[:-1])]
