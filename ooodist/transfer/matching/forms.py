"""Holds operators of one kind as arrays, of one or of many models, and computes similarities.

The similarity and the gain of a pair are defined in match.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Ranks = tuple[int, ...]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Form:
    """Operators of one kind whose weights have the same ranks, of one model or of several.

    Attributes:
        ranks: ranks of the weights.
        sizes: sizes of the axes, (axes, shapes). Each weight has an extra first axis of size 1.
        starts: the first axis of each weight.
        parameters: numbers of parameters, (weights, shapes). The first weight is the one that each
            operator has.
        masses: mass of an operator of each shape, (shapes,).
        shares: share of one operator of each shape in its model.
        counts: number of operators of each shape.
        owner: number of the model of each shape.
        columns: the column of each operator in the table.
        which: number of the shape of each operator.
    """

    ranks: Ranks
    sizes: Floats
    starts: Integers
    parameters: Floats
    masses: Floats
    shares: Floats
    counts: Integers
    owner: Integers
    columns: Integers
    which: Integers


def form_of(shapes: Sequence[Shapes], columns: Integers, model_mass: int) -> Form:
    """The form of operators with weights of these shapes, which have the same ranks.

    Args:
        shapes: shapes of the weights of each operator.
        columns: the column of each operator.
        model_mass: sum of the masses of all operators of the model.
    """
    different = {each: number for number, each in enumerate(dict.fromkeys(shapes))}
    which = np.array([different[each] for each in shapes])
    sizes, starts, parameters, masses = _measures(tuple(different))
    return Form(
        ranks=tuple(map(len, shapes[0])),
        sizes=sizes,
        starts=starts,
        parameters=parameters,
        masses=masses,
        shares=masses / model_mass,
        counts=np.bincount(which),
        owner=np.zeros(len(different), np.int64),
        columns=columns,
        which=which,
    )


@functools.lru_cache(maxsize=4096)  # models of a family have the same shapes
def _measures(different: tuple[Shapes, ...]) -> tuple[Floats, Integers, Floats, Floats]:
    """``sizes``, ``starts``, ``parameters`` and ``masses`` of a form with these shapes."""
    with_one = [((), *each) for each in different]
    # An axis of size 0 counts as 1, because sizes are divided by.
    sizes = [[max(1, size) for shape in each for size in (1, *shape)] for each in with_one]
    parameters = np.array([[math.prod(shape) for shape in each] for each in with_one], float).T
    starts = np.cumsum([0, *(len(shape) + 1 for shape in with_one[0][:-1])])
    return np.array(sizes, float).T, starts, parameters, parameters.sum(axis=0)


def joined(forms: Sequence[Form], owners: Integers, starts: Integers) -> Form:
    """The same form of several models as one.

    Args:
        forms: one of each model, at least one.
        owners: the number of each model, (forms,).
        starts: what is added to the columns of each model, (forms,).
    """
    shapes = [form.shares.size for form in forms]
    operators = [form.columns.size for form in forms]
    before = np.cumsum(shapes) - shapes
    return Form(
        ranks=forms[0].ranks,
        sizes=np.concatenate([form.sizes for form in forms], axis=1),
        starts=forms[0].starts,
        parameters=np.concatenate([form.parameters for form in forms], axis=1),
        masses=np.concatenate([form.masses for form in forms]),
        shares=np.concatenate([form.shares for form in forms]),
        counts=np.concatenate([form.counts for form in forms]),
        owner=np.repeat(owners, shapes),
        columns=np.concatenate([form.columns for form in forms]) + np.repeat(starts, operators),
        which=np.concatenate([form.which for form in forms]) + np.repeat(before, operators),
    )


def similarity(ours: Form, which: int, theirs: Form) -> Floats:
    """The similarity of one shape of a form to each of another form of the same op."""
    if ours.ranks != theirs.ranks:
        return 2 / (ours.masses[which] + theirs.masses)
    sizes = ours.sizes[:, which, None]
    ratios = np.minimum(sizes, theirs.sizes) / np.maximum(sizes, theirs.sizes)
    products = np.multiply.reduceat(ratios, ours.starts, axis=0)
    similar = (1 + 3 * products) / 4
    parameters = ours.parameters[:, which, None] + theirs.parameters
    return (parameters * similar).sum(axis=0) / parameters.sum(axis=0)


def pair_gains(ours: Form, which: int, theirs: Form) -> Floats:
    """The gains of pairs of one shape of a form with each of another of the same op."""
    return similarity(ours, which, theirs) * np.minimum(ours.shares[which], theirs.shares)
