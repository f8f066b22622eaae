"""The published selection: legal, and never better than the exact one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ooodist.elastic.selection.select import least_seconds, select
from tests.elastic.selection.test_select import (
    EverySubset,
    chain,
    random_branches,
    random_chain,
    total,
)
from tests.expr.scripts import load

select_published = load("elastic", "published").select_published


def test_loses_at_times_and_never_wins() -> None:
    """1,000 chains whose seconds are whole cells: what is lost is lost by the algorithm alone."""
    generator = random.Random(0)
    lost = []
    for _ in range(1000):
        choice = random_chain(generator, lambda: float(generator.randint(1, 20)))
        importance = [generator.random() for _ in choice.items]
        least = least_seconds(choice)
        budget = float(generator.randint(int(least), int(choice.full_seconds)))
        cells = int(choice.full_seconds - choice.fixed_seconds)
        published = select_published(choice, importance, budget, cells=cells)
        exact = select(choice, importance, budget)
        assert 0 in published
        assert choice.seconds(published) <= budget
        share = total(importance, published) / total(importance, exact)
        assert share <= 1 + 1e-9
        if share < 1 - 1e-9:
            lost.append(1 - share)
    print(f"{len(lost)} lost, {np.mean(lost):.3f} in mean, {max(lost):.3f} at most")
    assert len(lost) > 20


def test_no_better_where_it_keeps_the_budget() -> None:
    """Seconds are no whole cells: it may exceed the budget by what it rounds down."""
    generator = random.Random(1)
    exceeded = []
    for _ in range(300):
        choice = random_chain(generator, generator.random)
        importance = [generator.uniform(-0.2, 1) for _ in choice.items]
        forced = frozenset({0, generator.randrange(len(choice.items))})
        least = least_seconds(choice, forced)
        budget = least + generator.random() * (choice.full_seconds - least)
        published = select_published(choice, importance, budget, forced)
        assert forced <= published
        assert all(importance[number] > 0 for number in published - forced)
        over = choice.seconds(published) - budget
        if over > 1e-9:
            exceeded.append(over / budget)
            # Half a cell for the dW of each item and half for its dX.
            assert over <= len(choice.items) * choice.full_seconds / 1000
        else:
            best = EverySubset(choice, importance, forced).best(budget)
            assert total(importance, published) <= best + 1e-9
    print(f"{len(exceeded)} of 300 exceed the budget, by {max(exceeded, default=0):.2%} at most")
    assert len(exceeded) < 15


def test_branches_count_as_a_chain() -> None:
    generator = random.Random(2)
    for _ in range(50):
        choice = random_branches(generator, generator.random, most_items=8)
        importance = [generator.random() for _ in choice.items]
        budget = 0.8 * choice.full_seconds
        if budget < least_seconds(choice):
            continue
        found = select_published(choice, importance, budget)
        assert set(choice.head) <= found
        assert choice.seconds(found) <= budget * 1.05


def test_one_candidate_is_too_few() -> None:
    """Items 1 and 2 take 2 s each. Item 1 matters more, but with item 2, item 3 has half its dX."""
    choice = chain([0.0, 2.0, 1.0, 1.0], [2.0, 0.0, 1.0, 1.0])
    importance = [5.0, 1.5, 1.0, 2.0]
    assert select_published(choice, importance, 6.0, cells=8) == {0, 1, 2}
    assert select(choice, importance, 6.0) == {0, 2, 3}


def test_too_little_time() -> None:
    with pytest.raises(ValueError, match="more than"):
        select_published(chain([1.0], [1.0]), [1.0], 1.5)
    assert select_published(chain([1.0], [1.0]), [1.0], 2.0) == {0}


def test_nothing_takes_time() -> None:
    assert select_published(chain([0.0] * 3, [0.0] * 3, 1.0), [1.0, -1.0, 1.0], 1.0) == {0, 2}
