"""Finds the trained models that are most like a new one; few of them are matched in full.

An upper bound of the score is computed for all models at once, from the kinds and shapes of their
operators alone. They are matched in the order of these bounds, until no other can be among the
best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ooodist.transfer.matching.columns import forms_side_by_side
from ooodist.transfer.matching.forms import Floats, similarity
from ooodist.transfer.matching.match import Prepared, scores


def upper_bound(child: Prepared, parents: Sequence[Prepared]) -> Floats:
    """An upper bound of each parent's score, (parents,).

    Of each kind, at most as many operators match as the model with fewer of them has, and none
    gains more than with the most similar one of the other model, wherever that is.
    """
    unplaced = np.zeros(len(parents), np.int64)
    all_theirs = forms_side_by_side([each.kinds for each in parents], unplaced, child.kinds)
    bounds = np.zeros(len(parents))
    for op, ours in child.kinds.items():
        theirs = all_theirs.get(op, {})
        most_theirs = {ranks: np.zeros(form.shares.size) for ranks, form in theirs.items()}
        by_our_shape = np.zeros(len(parents))
        by_their_shape = np.zeros(len(parents))
        for our in ours.values():
            for which, share in enumerate((our.counts * our.shares).tolist()):
                most = np.zeros(len(parents))
                for ranks, their in theirs.items():
                    similar = similarity(our, which, their)
                    np.maximum.at(most, their.owner, similar)
                    np.maximum(most_theirs[ranks], similar, out=most_theirs[ranks])
                by_our_shape += share * most
        for ranks, their in theirs.items():
            gains = most_theirs[ranks] * their.counts * their.shares
            by_their_shape += np.bincount(their.owner, gains, len(parents))
        by_count = np.zeros(len(parents))
        for number, parent in enumerate(parents):
            if op in parent.largest:
                one, other = child.largest[op], parent.largest[op]
                count = min(one.size, other.size) - 1
                by_count[number] = min(one[count], other[count])
        bounds += np.minimum(np.minimum(by_our_shape, by_their_shape), by_count)
    return np.minimum(bounds, 1.0)


def bucket_of(score: float, buckets: int) -> int:
    """Which of the equal parts of the range from 0 to 1 a score is in; 0 is the lowest."""
    return min(buckets - 1, math.floor(score * buckets + 1e-9))  # scores are rounded


def candidates(
    child: Prepared, parents: Sequence[Prepared], *, buckets: int = 10, count: int = 1
) -> list[tuple[int, float]]:
    """The most similar parents as (number, score), the best first.

    Parents are matched from the highest bound down, and none whose bound is in too low a bucket.
    Of equal parents only one is matched.

    Args:
        child: the new model.
        parents: the trained models.
        buckets: equal parts of the range from 0 to 1. All parents of the highest bucket that has
            any are returned, or of more buckets, until there are ``count``.
        count: the least number of parents to return, if there are as many.
    """
    equal: dict[str, list[int]] = {}
    for number, parent in enumerate(parents):
        equal.setdefault(parent.digest, []).append(number)
    groups = list(equal.values())
    bounds = upper_bound(child, [parents[group[0]] for group in groups])
    order = np.argsort(-bounds, kind="stable").tolist()
    found: list[tuple[int, float]] = []
    lowest, done, size = 0, 0, 4
    while done < len(order) and bucket_of(bounds[order[done]], buckets) >= lowest:
        some = order[done : done + size]
        batch = [each for each in some if bucket_of(bounds[each], buckets) >= lowest]
        values = scores(child, [parents[groups[each][0]] for each in batch]).tolist()
        for each, value in zip(batch, values, strict=True):
            found += [(number, value) for number in groups[each]]
        done += size
        size = min(2 * size, 64)
        found.sort(key=lambda each: (-each[1], each[0]))
        if len(found) >= count:
            lowest = bucket_of(found[max(count, 1) - 1][1], buckets)
    return [(number, value) for number, value in found if bucket_of(value, buckets) >= lowest]
