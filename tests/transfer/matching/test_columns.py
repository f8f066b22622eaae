"""Columns: each element of each series has one of its own, also beside other models."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.transfer.graph.operators import Operator, Outline
from ooodist.transfer.graph.series_parallel import decompose
from ooodist.transfer.matching.columns import Columns, lay_out, side_by_side
from tests.transfer.exhaustive import random_graph, several_of_each

SEEDS = st.integers(0, 10**6)


def columns_of(outline: Outline) -> Columns:
    return lay_out(outline, decompose(outline))[0]


def used(columns: Columns) -> list[int]:
    """Columns of operators and of parallels."""
    parts = [form.columns for by_ranks in columns.forms.values() for form in by_ranks.values()]
    parts += [of_parallels for of_parallels, _ in columns.parallels.values()]
    return sorted(np.concatenate([[], *parts]).astype(int).tolist())


def test_a_fork_by_hand() -> None:
    """Series (1, 2), (3,) and (0, fork, 4), inner ones first, each behind a column of its own."""
    dense, add = (((2, 2),),), ()
    outline = (
        Operator("Dense", (), *dense),
        Operator("Dense", (0,), *dense),
        Operator("Dense", (1,), *dense),
        Operator("Dense", (0,), *dense),
        Operator("Add", (2, 3), add),
    )
    series = decompose(outline)
    columns, forms = lay_out(outline, series)
    sizes = [len(each) for each in series]
    assert columns.first.tolist() == [0, *np.cumsum([size + 1 for size in sizes])[:-1]]
    assert (columns.last - columns.first).tolist() == sizes
    assert columns.outermost.tolist() == [len(series) - 1]
    (parallel,) = columns.parallels[2][0].tolist()
    assert parallel == columns.first[-1] + 2
    assert [form.ranks for form, _ in forms] == [(2,)] * 4 + [()]
    assert set(columns.forms) == {"Dense", "Add"}


@given(SEEDS, st.integers(0, 20))
def test_each_element_has_a_column_that_no_other_has(seed: int, size: int) -> None:
    outline = random_graph(random.Random(seed), size)
    series = decompose(outline)
    columns, forms = lay_out(outline, series)
    width = int(columns.last[-1]) + 1
    assert used(columns) == sorted({*range(width)} - {*columns.first.tolist()})
    assert len(forms) == size
    for each, (form, which) in zip(outline, forms, strict=True):
        assert columns.forms[each.op][form.ranks] is form
        shape_sizes = [1, *(axis for shape in each.shapes for axis in (1, *shape))]
        assert form.sizes[:, which].tolist() == shape_sizes


@given(st.lists(st.integers(0, 8), max_size=4), SEEDS)
def test_models_side_by_side_share_no_column(sizes: list[int], seed: int) -> None:
    generator = random.Random(seed)
    models = [columns_of(random_graph(generator, size)) for size in sizes]
    both = side_by_side(models)
    widths = [int(model.last[-1]) + 1 for model in models]
    starts = [sum(widths[:number]) for number in range(len(widths))]
    moved = [at + start for model, start in zip(models, starts, strict=True) for at in used(model)]
    assert used(both) == sorted(moved)
    assert both.first.size == sum(model.first.size for model in models)
    assert both.outermost.size == len(models)
    for form in (form for by_ranks in both.forms.values() for form in by_ranks.values()):
        owner = np.searchsorted(starts, form.columns, side="right") - 1
        assert form.owner[form.which].tolist() == owner.tolist()


@pytest.mark.parametrize("count", [1, 3])
def test_branches_are_those_of_their_own_model(count: int) -> None:
    models = [columns_of(outline) for outline in several_of_each(2)] * count
    both = side_by_side(models)
    ends = np.cumsum([model.first.size for model in models])
    for columns, branches in both.parallels.values():
        series = np.searchsorted(both.first, columns, side="right") - 1
        model_of_parallel = np.searchsorted(ends, series, side="right")
        model_of_branches = np.searchsorted(ends, branches, side="right")
        assert (model_of_branches == model_of_parallel[:, None]).all()
        assert (branches < series[:, None]).all()  # inner ones come first
