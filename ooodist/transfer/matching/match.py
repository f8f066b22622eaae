"""Matches the operators of a trained model to those of a new one, and scores their similarity.

The new model is the child, the trained one the parent. Each operator has a mass: its parameters
plus one; its share is its mass divided by its model's. Operators of the same kind have a
similarity::

    s(u, v) = mean over weights of  (1 + 3 * product over axes of smaller / larger size) / 4

weighted by the parameters of both, where the one counts as a weight that is always the same. If the
weights differ in number or in ranks, only that one is similar. A pair gains
``s(u, v) * min(share of u, share of v)``, and the score of two models is the largest sum of gains
of pairs that keep the order: 1 for equal models, and the same for (a, b) and (b, a). A quarter is
for the kind alone, and shares are compared rather than numbers of parameters: otherwise the stages
of a net that is twice as wide would match the next stages of the narrow one, not their own.

Both models are series of operators and of parallel branches (series_parallel.py). Two series are
aligned (alignment.py). Of two parallels, branches are assigned to branches (assignment.py), each
gaining what its own alignment gains. All series of a child are aligned with all series of a parent,
inner ones of the child first, since the gain of two parallels needs those of their branches. That
takes one step per operator of the child: all series of one parent, or of many, are side by side in
the columns of one table (columns.py). Gains are integers there, so that ties are exact.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooodist.transfer.graph.operators import Outline, plain_of
from ooodist.transfer.graph.series_parallel import Element, Series, decompose
from ooodist.transfer.matching.alignment import aligned
from ooodist.transfer.matching.assignment import assignment, best_assignments
from ooodist.transfer.matching.columns import Columns, Forms, forms_of, lay_out, side_by_side
from ooodist.transfer.matching.forms import Floats, Form, Integers, pair_gains
from ooodist.util.digest import hex_digest

WHOLE = 2**44  # a score of 1, in units of the tables
BATCH = 2**14  # roughly how many operators of several parents share one table


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model with the part of the work that all of its matches share.

    Attributes:
        outline: its operators.
        digest: digest of the outline; equal outlines share it.
        kinds: its operators by kind, all that bounds on its scores need.
        largest: by kind: summed shares of none of its operators, the largest, the two largest, ...
    """

    outline: Outline
    digest: str
    kinds: Forms
    largest: dict[str, Floats]

    # Few of the models that are compared are matched in full.

    @functools.cached_property
    def series(self) -> tuple[Series, ...]:
        """See :func:`ooodist.transfer.graph.series_parallel.decompose`."""
        return decompose(self.outline)

    @functools.cached_property
    def _laid_out(self) -> tuple[Columns, tuple[tuple[Form, int], ...]]:
        return lay_out(self.outline, self.series)

    @property
    def columns(self) -> Columns:
        """The series as columns of a table."""
        return self._laid_out[0]

    @property
    def forms(self) -> tuple[tuple[Form, int], ...]:
        """The form of each operator, with the number of its shape there."""
        return self._laid_out[1]


@dataclass(frozen=True)
class Match:
    """The operators of a child and a parent that match, and the score of the two models.

    Attributes:
        score: from 0 to 1.
        pairs: numbers of operators of the child and of the parent, ascending by the child's.
    """

    score: float
    pairs: tuple[tuple[int, int], ...]


def prepare(outline: Outline, digest: str = "") -> Prepared:
    """Prepares a model for matches: does what each of them needs.

    Args:
        outline: its operators.
        digest: what equal outlines share; empty to compute it.
    """
    kinds, largest = forms_of(outline), {}
    for op, by_ranks in kinds.items():
        shares = np.concatenate([form.shares[form.which] for form in by_ranks.values()])
        largest[op] = np.cumsum([0, *np.sort(shares)[::-1]])
    digest = digest or hex_digest(json.dumps(plain_of(outline)))
    return Prepared(outline, digest, kinds, largest)


def match(child: Prepared, parent: Prepared) -> Match:
    """The best pairs of operators of the two models.

    Among equally good pairs it prefers branches with the same kinds of operators, as additional
    ones would change the output; then pairs with few gaps, so that blocks stay whole; and then
    pairs of early operators: what the child has in addition comes after what fits.
    """
    kinds, its_kinds = _kinds(child), _kinds(parent)
    table = _Table(child, side_by_side([parent.columns]))
    pairs = []
    todo = [(len(child.series) - 1, len(parent.series) - 1)]
    while todo:
        here, there = todo.pop()
        ours, theirs = child.series[here], parent.series[there]
        inside = slice(parent.columns.first[there] + 1, parent.columns.last[there] + 1)
        rows = (table.gains(element)[inside] for element in ours)
        for at, to in aligned(rows, len(theirs)):
            one, other = ours[at], theirs[to]
            if isinstance(one, int):
                assert isinstance(other, int), "An operator never matches branches."
                pairs.append((one, other))
            else:
                assert not isinstance(other, int), "Branches never match an operator."
                values = table.best[np.ix_(one.branches, other.branches)]
                unmatched = np.array(
                    [
                        [_num_different(kinds[mine], its_kinds[its]) for its in other.branches]
                        for mine in one.branches
                    ]
                )
                todo += [
                    (one.branches[row], other.branches[column])
                    for row, column in zip(*assignment(values, unmatched), strict=True)
                    if values[row, column]
                ]
    pairs.sort()
    gains = []  # exact ones, as those of the table are rounded
    for one, other in pairs:
        form, which = parent.forms[other]
        gains.append(float(pair_gains(*child.forms[one], form)[which]))
    return Match(min(1.0, math.fsum(gains)), tuple(pairs))


def _kinds(model: Prepared) -> list[Counter[str]]:
    """The number of operators of each kind in each series, with those in its parallels."""
    found: list[Counter[str]] = []
    for series in model.series:
        counter: Counter[str] = Counter()
        for element in series:
            if isinstance(element, int):
                counter[model.outline[element].op] += 1
            else:
                for branch in element.branches:
                    counter += found[branch]
        found.append(counter)
    return found


def _num_different(one: Counter[str], other: Counter[str]) -> int:
    return (one - other).total() + (other - one).total()


def score(child: Prepared, parent: Prepared) -> float:
    """The score of the best pairs, within 1e-9, in half the time of ``match``."""
    return float(scores(child, [parent])[0])


def scores(child: Prepared, parents: Sequence[Prepared]) -> Floats:
    """The scores of several parents, (parents,), faster than one by one."""
    found = []
    sizes = np.cumsum([len(parent.outline) for parent in parents]) // BATCH
    for _, batch in itertools.groupby(range(len(parents)), key=sizes.tolist().__getitem__):
        table = _Table(child, side_by_side([parents[number].columns for number in batch]))
        found.append(table.best[-1, table.parents.outermost])
    return np.minimum(np.concatenate([[], *found]) / WHOLE, 1.0)


class _Table:
    """The gains of all series of a child with all series of parents.

    Attributes:
        child: the model of the rows.
        parents: the columns.
        best: gains in units of 1 / ``WHOLE``, int64 (series of the child, series of the parents).
    """

    def __init__(self, child: Prepared, parents: Columns) -> None:
        self.child = child
        self.parents = parents
        self.best: Integers = np.zeros((len(child.series), parents.first.size), np.int64)
        # The best so far never decreases along a series. Each series begins above where the one
        # before it can end, so that one running maximum serves all of them.
        begin = 2 * WHOLE * np.arange(parents.first.size)
        self.base: Integers = np.repeat(begin, parents.last - parents.first + 1)
        for number, series in enumerate(child.series):
            row = self.base.copy()
            for element in series:
                matched = row[:-1] + self.gains(element)[1:]
                np.maximum(row[1:], matched, out=row[1:])
                np.maximum.accumulate(row, out=row)
            self.best[number] = row[parents.last] - begin

    def gains(self, element: Element) -> Integers:
        """The gains of an element of the child with each column; 0: they do not match.

        Branches must have their rows in ``best``.
        """
        row = np.zeros(self.base.size, np.int64)
        if isinstance(element, int):
            form, which = self.child.forms[element]
            for other in self.parents.forms.get(self.child.outline[element].op, {}).values():
                gains = np.rint(pair_gains(form, which, other) * WHOLE).astype(np.int64)
                row[other.columns] = np.maximum(gains, 1)[other.which]
        else:
            ours = self.best[list(element.branches)]
            for columns, branches in self.parents.parallels.values():
                row[columns] = best_assignments(ours[:, branches].transpose(1, 0, 2))
        return row
