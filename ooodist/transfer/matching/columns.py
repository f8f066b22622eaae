"""Lays out the series of one or of many models as the columns of one table; see match.py."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ooodist.transfer.graph.operators import Outline
from ooodist.transfer.graph.series_parallel import Series
from ooodist.transfer.matching import forms
from ooodist.transfer.matching.forms import Form, Integers, Ranks

Forms = dict[str, dict[Ranks, Form]]
"""Operators by kind and by ranks of their weights."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Series as columns of a table.

    Attributes:
        first: the first column of each series, which stands before its first element.
        last: the last column of each series.
        outermost: the number of the outermost series of each model.
        parallels: by number of branches: columns of the parallels (parallels,), and the numbers of
            their series (parallels, branches).
        forms: the operators, by kind and by ranks of their weights.
    """

    first: Integers
    last: Integers
    outermost: Integers
    parallels: dict[int, tuple[Integers, Integers]]
    forms: Forms


def lay_out(
    outline: Outline, series: Sequence[Series]
) -> tuple[Columns, tuple[tuple[Form, int], ...]]:
    """The columns of a model, and for each operator its form and the number of its shape.

    Args:
        outline: the operators of the model.
        series: what :func:`ooodist.transfer.graph.series_parallel.decompose` makes of it.
    """
    ends = np.cumsum([len(elements) + 1 for elements in series])
    column_of = np.zeros(len(outline), np.int64)
    parallels: dict[int, tuple[list[int], list[tuple[int, ...]]]] = {}
    for end, elements in zip(ends.tolist(), series, strict=True):
        for at, element in enumerate(elements, end - len(elements)):
            if isinstance(element, int):
                column_of[element] = at
            else:
                columns, branches = parallels.setdefault(len(element.branches), ([], []))
                columns.append(at)
                branches.append(element.branches)
    by_kind, by_operator = _forms(outline, column_of)
    columns_of_model = Columns(
        first=ends - [len(elements) + 1 for elements in series],
        last=ends - 1,
        outermost=np.array([len(series) - 1]),
        parallels={
            size: (np.array(columns), np.array(branches))
            for size, (columns, branches) in parallels.items()
        },
        forms=by_kind,
    )
    return columns_of_model, by_operator


def side_by_side(parts: Sequence[Columns]) -> Columns:
    """The columns of several models as those of one table."""
    at = np.cumsum([0, *(part.last[-1] + 1 for part in parts)])
    series = np.cumsum([0, *(part.first.size for part in parts)])
    parallels: dict[int, list[tuple[Integers, Integers]]] = {}
    for number, part in enumerate(parts):
        for size, (columns, branches) in part.parallels.items():
            moved = columns + at[number], branches + series[number]
            parallels.setdefault(size, []).append(moved)
    return Columns(
        first=_joined(part.first + start for part, start in zip(parts, at, strict=False)),
        last=_joined(part.last + start for part, start in zip(parts, at, strict=False)),
        outermost=series[1:] - 1,
        parallels={
            size: (
                _joined(columns for columns, _ in each),
                _joined(branches for _, branches in each),
            )
            for size, each in parallels.items()
        },
        forms=forms_side_by_side([part.forms for part in parts], at),
    )


def forms_of(outline: Outline) -> Forms:
    """The operators of a model, by kind and ranks, each in the column of its number."""
    return _forms(outline, np.arange(len(outline)))[0]


def forms_side_by_side(
    parts: Sequence[Forms], at: Integers, kinds: Collection[str] | None = None
) -> Forms:
    """The forms of several models as those of one table.

    Args:
        parts: the forms of each model.
        at: the first column of each model in the table.
        kinds: those that are needed; None for all.
    """
    owners: dict[str, dict[Ranks, list[int]]] = {}
    for number, part in enumerate(parts):
        for op, by_ranks in part.items():
            if kinds is None or op in kinds:
                for ranks in by_ranks:
                    owners.setdefault(op, {}).setdefault(ranks, []).append(number)
    return {
        op: {
            ranks: forms.joined(
                [parts[number][op][ranks] for number in numbers],
                np.array(numbers),
                at[numbers],
            )
            for ranks, numbers in by_ranks.items()
        }
        for op, by_ranks in owners.items()
    }


def _forms(outline: Outline, column_of: Integers) -> tuple[Forms, tuple[tuple[Form, int], ...]]:
    """The forms by kind and ranks, and for each operator its form and number of its shape.

    Args:
        outline: the operators of the model.
        column_of: the column of each operator.
    """
    members: dict[str, dict[Ranks, list[int]]] = {}
    for number, each in enumerate(outline):
        ranks = tuple(map(len, each.shapes))
        members.setdefault(each.op, {}).setdefault(ranks, []).append(number)
    mass = sum(1 + sum(map(math.prod, each.shapes)) for each in outline)
    by_kind: Forms = {op: {} for op in members}
    by_operator: dict[int, tuple[Form, int]] = {}
    for op, by_ranks in members.items():
        for ranks, numbers in by_ranks.items():
            shapes = [outline[number].shapes for number in numbers]
            form = forms.form_of(shapes, column_of[numbers], mass)
            by_kind[op][ranks] = form
            for number, which in zip(numbers, form.which.tolist(), strict=True):
                by_operator[number] = form, which
    return by_kind, tuple(by_operator[number] for number in range(len(outline)))


def _joined(parts: Iterable[Integers]) -> Integers:
    listed = list(parts)
    return np.concatenate(listed) if listed else np.zeros(0, np.int64)
