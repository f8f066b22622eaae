"""All selections tried, to compare with."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

from ooodist.elastic.cost_model import CostModel
from ooodist.elastic.selection.select import select
from tests.elastic.selection.test_select import total

EXACT = 1 + 1e-9  # what sums of floats may be off


def best_of_all(
    seconds: Callable[[frozenset[int]], float],
    importance: Sequence[float],
    budget: float,
    forced: frozenset[int],
) -> float:
    """The greatest importance of all selections that fit."""
    numbers = range(len(importance))
    masks = (frozenset(n for n in numbers if bits >> n & 1) for bits in range(2 ** len(numbers)))
    those = sorted((m for m in masks if forced <= m), key=lambda mask: -total(importance, mask))
    return next(total(importance, mask) for mask in those if seconds(mask) <= budget * EXACT)


def check_close_to_the_best(make: Callable[[], CostModel], generator: random.Random) -> None:
    """What is selected fits, and matters nearly as much as the best of all, in 40 instances.

    Args:
        make: makes an instance.
        generator: of importance and budgets.
    """
    shares = []
    for _ in range(40):
        cost_model = make()
        forced = frozenset({0})
        everything = frozenset(range(len(cost_model.choice.items)))
        importance = [generator.random() for _ in everything]
        least, most = cost_model.seconds(forced), cost_model.seconds(everything)
        budget = least + generator.random() * (most - least)
        found = cost_model.select(select, importance, budget, forced)
        assert forced <= found
        assert cost_model.seconds(found) <= budget * EXACT
        best = best_of_all(cost_model.seconds, importance, budget, forced)
        shares.append(total(importance, found) / best)
    print(f"{statistics.mean(shares):.3f} of the best in mean, {min(shares):.3f} at least")
    assert statistics.mean(shares) > 0.95
