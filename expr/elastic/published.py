"""The approximate selection that was published, to compare with.

K. Huang, B. Yang and W. Gao, "ElasticTrainer: Speeding Up On-Device Training with Runtime Elastic
Tensor Selection", MobiSys 2023. It knows chains only. P(k, t) is one candidate: the most important
selection among the first k items, from the output down, that fits t cells of time. Item k is put
on top of those candidates in which an item k' above it is the deepest one::

    P(k, t) = max(P(k-1, t), P(k', t - w_k - (Y_k - Y_k')) + I_k)   for all k' < k

with Y_k the dX seconds down to item k. That is O(N^2 T), and not exact: a deep candidate that is a
little more important replaces one that is less deep and needs less time for what comes on top.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ooodist.elastic.selection.items import Selectable
from ooodist.elastic.selection.select import SLACK, always_selected, room_beside


def select_published(
    choice: Selectable,
    importance: Sequence[float],
    budget: float,
    forced: Collection[int] = (),
    *,
    cells: int = 1000,
) -> frozenset[int]:
    """Returns the numbers of important items that fit the budget, or nearly.

    Seconds are rounded to the nearest cell, so a selection may take a little more than the budget.
    The authors' code rounds down, and discounts the budget twice by the share that this loses; for
    161 items, 15 % of the budget are left over. To compare the algorithms, the nearest is fairer.

    Args:
        choice: the items and what they cost. Each is charged as if it needed what the items above
            it need: a network with branches counts as a chain.
        importance: of each item, in any unit; what is not positive is selected only if forced.
        budget: seconds of the whole step, ``choice.fixed_seconds`` included.
        forced: numbers of items that must be selected; if none, those next to the loss.
        cells: into which the seconds of all items and dX units are divided.

    Raises:
        ValueError: even the forced items alone take longer than the budget.
    """
    forced = always_selected(choice, forced)
    room_beside(choice, forced, budget)
    own_seconds = np.array([item.seconds for item in choice.items])
    path_seconds = _path_seconds(choice)
    full = own_seconds.sum() + path_seconds.sum()
    if not full or not forced:
        return forced | {n for n in range(len(choice.items)) if importance[n] > 0}

    own = np.rint(own_seconds * cells / full).astype(int)
    path = np.rint(path_seconds * cells / full).astype(int)
    deepest = max(forced)
    num_cells = int((budget - choice.fixed_seconds) * cells / full + SLACK)
    num_cells -= own[sorted(forced)].sum() + path[: deepest + 1].sum()
    if num_cells < 0:
        return forced
    path[: deepest + 1] = 0  # the forced items have paid for it
    depth = np.cumsum(path)

    # One row an item that can be selected, behind one for the forced items alone: the importance
    # of what is stored, where the item of the row is in it, and all items that are.
    rows = [n for n in range(len(choice.items)) if importance[n] > 0 and n not in forced]
    best = np.zeros((len(rows) + 1, num_cells + 1))
    ends_here = np.zeros(best.shape, dtype=bool)
    ends_here[0] = True
    stored = np.zeros((*best.shape, len(choice.items)), dtype=bool)
    depths = [0, *depth[rows]]
    for row, number in enumerate(rows, start=1):
        best[row], stored[row] = best[row - 1], stored[row - 1]
        for above in reversed(range(row)):
            cost = own[number] + depth[number] - depths[above]
            if cost > num_cells:
                continue
            before = np.s_[above, : num_cells + 1 - cost]
            offered = best[before] + importance[number]
            better = np.flatnonzero(ends_here[before] & (offered > best[row, cost:]))
            best[row, better + cost] = offered[better]
            ends_here[row, better + cost] = True
            stored[row, better + cost] = stored[above, better]
            stored[row, better + cost, number] = True
    top = np.unravel_index(np.argmax(best), best.shape)
    return forced | frozenset(np.flatnonzero(stored[top]).tolist())


def _path_seconds(choice: Selectable) -> np.ndarray:
    """Returns the dX seconds from what the items above need to what each needs."""
    seconds, running = [], frozenset[str]()
    for item in choice.items:
        seconds.append(sum(choice.path_seconds[name] for name in item.needs - running))
        running |= item.needs
    return np.array(seconds)
