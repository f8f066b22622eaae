"""Forms: similarities and gains by hand and by the definition, and several models as one."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.transfer.graph.operators import Operator
from ooodist.transfer.matching.forms import Form, Shapes, form_of, joined, pair_gains, similarity
from tests.transfer.exhaustive import gain, mass

RANKS = st.lists(st.integers(0, 3), max_size=3)


def shapes_of(ranks: list[int], generator: random.Random, count: int) -> list[Shapes]:
    """Operators whose weights have these ranks, some of which are equal."""
    different = [
        tuple(tuple(generator.randint(1, 9) for _ in range(rank)) for rank in ranks)
        for _ in range(max(1, count // 2))
    ]
    return [generator.choice(different) for _ in range(count)]


def form(shapes: list[Shapes], first_column: int = 0) -> Form:
    """Of operators that are a whole model, in columns one behind the other."""
    total = sum(1 + sum(map(math.prod, each)) for each in shapes)
    return form_of(shapes, np.arange(first_column, first_column + len(shapes)), total)


def test_what_it_says_of_its_operators() -> None:
    found = form([((2, 3), (3,)), ((4, 3), (3,)), ((2, 3), (3,))], first_column=5)
    assert found.ranks == (2, 1)
    assert found.which.tolist() == [0, 1, 0]
    assert found.counts.tolist() == [2, 1]
    assert found.masses.tolist() == [10, 16]
    assert found.shares.tolist() == [10 / 36, 16 / 36]
    assert found.parameters.tolist() == [[1, 1], [6, 12], [3, 3]]
    assert found.columns.tolist() == [5, 6, 7]


def test_a_similarity_by_hand() -> None:
    """Half the rows are 5/8 for the kernel; the bias and the one are equal."""
    ours, theirs = form([((2, 3), (3,))]), form([((4, 3), (3,)), ((2, 3), (3,))])
    expected = ((6 + 12) * (1 + 3 * 0.5) / 4 + (3 + 3) + (1 + 1)) / (10 + 16)
    np.testing.assert_allclose(similarity(ours, 0, theirs), [expected, 1])


def test_other_ranks_leave_the_one() -> None:
    ours, theirs = form([((2, 3),)]), form([((2, 3), (3,))])
    np.testing.assert_allclose(similarity(ours, 0, theirs), [2 / (7 + 10)])


def test_sizes_of_zero_are_no_division_by_zero() -> None:
    empty = form([((0, 3),)])
    assert similarity(empty, 0, empty).tolist() == [1]
    assert 0 < similarity(empty, 0, form([((2, 3),)]))[0] < 1


@given(RANKS, RANKS, st.integers(0, 10**6))
def test_gains_are_those_of_the_definition(ours: list[int], theirs: list[int], seed: int) -> None:
    generator = random.Random(seed)
    child, parent = shapes_of(ours, generator, 3), shapes_of(theirs, generator, 4)
    outlines = [tuple(Operator("Op", (), each) for each in model) for model in (child, parent)]
    one, other = form(child), form(parent)
    for u, which in enumerate(one.which.tolist()):
        gains = pair_gains(one, which, other)[other.which]
        expected = [gain(*outlines, u, v) for v in range(len(parent))]
        np.testing.assert_allclose(gains, expected)
    masses = [mass(each) for each in outlines[1]]
    assert other.masses[other.which].tolist() == masses


@given(RANKS, st.integers(0, 10**6))
def test_similarity_is_symmetric_at_most_1_and_1_for_equals(ranks: list[int], seed: int) -> None:
    both = form(shapes_of(ranks, random.Random(seed), 6))
    table = np.array([similarity(both, which, both) for which in range(both.counts.size)])
    np.testing.assert_allclose(table, table.T)
    np.testing.assert_allclose(np.diag(table), 1)
    assert ((table > 0) & (table <= 1 + 1e-12)).all()


@pytest.mark.parametrize("ranks", [[], [1], [4, 1]])
def test_joined_forms_gain_what_each_gains(ranks: list[int]) -> None:
    generator = random.Random(0)
    child = form(shapes_of(ranks, generator, 2))
    models = [form(shapes_of(ranks, generator, size), 100 * size) for size in (1, 4, 9)]
    both = joined(models, np.arange(3), np.zeros(3, np.int64))
    for which in range(child.counts.size):
        apart = [pair_gains(child, which, each)[each.which] for each in models]
        gains = pair_gains(child, which, both)[both.which]
        np.testing.assert_array_equal(gains, np.concatenate(apart))
    assert both.columns.tolist() == [100, *range(400, 404), *range(900, 909)]
    assert both.counts.sum() == 14
