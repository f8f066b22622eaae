"""Keeps norms exact where some of their units would occur more often than others.

Where the number of a child's units is not a multiple of the parent's, copies of some units but not
of others change the mean and the variance that a norm takes. Exact instead, if all that makes these
units is linear up to the norm, as in a residual stream, are:

    LayerNorm    the parent's units times s, and r more that are s times the mean of all of them:
                 the mean m of all units stays in the middle, and with s^2 = M / (K N) the sum of
                 squares of K N copies is that of M units, so that the variance is the same
    RMSNorm      copies of unit i times a_i, where a_i^2 = M / (N c_i) for its c_i copies: the
                 mean of squares is the same
    Dot          copies of unit i times a_i, whose squares add up to 1: so do the products

(M units of the child, N of the parent, K whole copies, r = M - K N.) The norm then divides its
scale by what its units were multiplied by, and so does whatever else reads them.

A *stretch* is the part of a model where units are scaled so: the operators whose results they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from ooodist.transfer.graph.graph import Axis, Graph, Node, Weight
from ooodist.transfer.mapping.units import NOTHING, UnitMaps

_PRODUCERS = ("Dense", "Conv1D", "Conv2D", "Conv3D", "Embedding", "MultiHeadAttention")
# They add units of their own to what they read; Positions only make some.
_ADDED = ("PositionEmbedding", "ClassToken", "Positions")
_PASSING = (
    *("Add", "Subtract", "Reshape", "GetItem", "Permute", "GlobalAveragePooling1D"),
    *("GlobalAveragePooling2D", "AveragePooling1D", "AveragePooling2D", "ZeroPadding1D"),
    *("ZeroPadding2D", "UpSampling1D", "UpSampling2D"),
)
_HOMOGENEOUS = ("relu", "MaxPooling1D", "MaxPooling2D", "GlobalMaxPooling1D", "GlobalMaxPooling2D")
"""Not linear, but a scaled input gives a scaled output."""
_NORMS = ("LayerNormalization", "RMSNormalization")


@dataclass(frozen=True)
class Stretch:
    """Results whose units are scaled.

    Attributes:
        space: the child's space of these units.
        members: numbers of the operators whose results are scaled.
        norms: numbers of the norms, or Dots, that read them.
        scales: the factor of each unit, float64 (units,).
        means: how many units at the end are the mean of all of the parent's.
        num_sources: number of the parent's units; the first units are these, in their order.
        tied: those of the norms that are read by a tied table that makes such results itself.
    """

    space: int
    members: frozenset[int]
    norms: frozenset[int]
    scales: np.ndarray
    means: int
    num_sources: int
    tied: frozenset[int]


def find(child: Graph, maps: UnitMaps, known: Collection[int]) -> tuple[Stretch, ...]:
    """Where units are to be scaled; ``maps`` then copies nothing to units that are means.

    Args:
        child: the new model.
        maps: the maps of units.
        known: numbers of the operators whose weights are made by the maps, or are zero.
    """
    found = []
    for space, described in enumerate(child.spaces):
        source = maps.partner(space)
        norms = frozenset(n for n, node in enumerate(child.nodes) if _is_norm(node, space))
        dots = dots_over(child, space)
        if described.kind != "units" or source is None or not (norms or dots):
            continue
        size, its_size = described.size, maps.source_size(source)
        if size <= its_size or (size % its_size == 0 and not dots):
            continue
        units = maps.units(space, source)
        if (units == NOTHING).any():
            continue
        kinds = {child.nodes[each].op for each in norms | dots}
        region = _region(child, space, frozenset(known), norms | dots, kinds)
        if region is None:
            continue
        members, tied = region
        copies, means = divmod(size, its_size)
        if kinds == {"RMSNormalization"}:
            scales, means = np.sqrt(size / its_size / np.bincount(units)[units]), 0
        elif kinds == {"Dot"}:
            parts = 1.0 + np.arange(size) // its_size  # unequal, so that copies differ
            scales, means = np.sqrt(parts / np.bincount(units, parts)[units]), 0
        elif kinds == {"LayerNormalization"} and all(
            {weight.kind for weight in child.nodes[norm].weights} == {"gamma", "beta"}
            for norm in norms
        ):  # a scale to divide, and an offset for the new units
            scales = np.full(size, np.sqrt(size / (copies * its_size)))
            units = units.copy()
            units[-means:] = NOTHING
            maps.replace(space, source, units)
        else:
            continue
        found.append(Stretch(space, members, norms | dots, scales, means, its_size, tied))
    return tuple(found)


def dots_over(graph: Graph, space: int) -> frozenset[int]:
    """The operators that sum up products of the units of a space."""
    found = set()
    for number, node in enumerate(graph.nodes):
        if node.op == "Dot":
            for source in node.inputs:
                while not graph.nodes[source].weights and graph.nodes[source].inputs:
                    source = graph.nodes[source].inputs[0]
                if _makes(graph.nodes[source], space):
                    found.add(number)
    return frozenset(found)


def scaled(
    stretches: Iterable[Stretch], number: int, node: Node, weight: Weight, made: np.ndarray
) -> np.ndarray:
    """A weight that was made by the maps, adjusted to the scales of units.

    Args:
        stretches: all stretches of the child.
        number: number of the operator.
        node: the operator.
        weight: one of its weights.
        made: the value of the weight.
    """
    for stretch in stretches:
        for at, axis in enumerate(weight.axes):
            if not _is_over(axis, stretch.space):
                continue
            if number in stretch.norms:
                made = _of_norm(stretch, weight.kind, made, is_tied=number in stretch.tied)
            elif axis.role == "in":
                if stretch.members.intersection(node.inputs):
                    made = made / _along(stretch.scales, at, made)
            elif number in stretch.members:
                made = made * _along(stretch.scales, at, made)
                made = _with_means(stretch, np.moveaxis(made, at, -1))
                made = np.moveaxis(made, -1, at)
    return made


def _of_norm(stretch: Stretch, kind: str, made: np.ndarray, *, is_tied: bool) -> np.ndarray:
    """Adjusts a norm's weight to scaled units, whose means come out as the norm's offset.

    Its readers multiply the offset by zeros, but learn from it. A tied table has no such zeros, so
    for that the offset is zero itself.
    """
    made = made / stretch.scales if kind in ("gamma", "scale") else made.copy()
    if stretch.means:
        made[-stretch.means :] = 0.0 if kind == "beta" and is_tied else 1.0
    return made


def _with_means(stretch: Stretch, made: np.ndarray) -> np.ndarray:
    """Makes the last units the mean of the parent's; ``made`` has units on its last axis."""
    if stretch.means:
        every = made[..., : stretch.num_sources]
        made[..., -stretch.means :] = every.mean(axis=-1, keepdims=True)
    return made


def _along(scales: np.ndarray, at: int, result: np.ndarray) -> np.ndarray:
    return scales.reshape([-1 if number == at else 1 for number in range(result.ndim)])


def _region(
    child: Graph, space: int, known: frozenset[int], norms: frozenset[int], kinds: set[str]
) -> tuple[frozenset[int], frozenset[int]] | None:
    """The results that reach norms over a space, and the norms that a tied table reads.

    None if not all of that is linear.
    """
    is_mean = "LayerNormalization" in kinds
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(child.nodes):
        for source in node.inputs:
            readers.setdefault(source, []).append(number)
    todo = [source for norm in norms for source in child.nodes[norm].inputs]
    members: set[int] = set()
    while todo:
        number = todo.pop()
        if number in members:
            continue
        members.add(number)
        node = child.nodes[number]
        if _hands_on(node, space, is_mean):
            todo += node.inputs
        elif not _makes(node, space):
            return None
        if number not in readers or (node.weights and number not in known):
            return None
        for reader in readers[number]:
            behind = child.nodes[reader]
            if _hands_on(behind, space, is_mean):
                todo.append(reader)
            elif reader not in norms and not (reader in known and _reads(behind, space)):
                return None
    tied = {
        source
        for node in child.nodes
        if (node.settings or {}).get("tied") in members
        for source in node.inputs
    }
    if members & norms or not tied <= norms:
        return None
    return frozenset(members), frozenset(tied)


def _is_norm(node: Node, space: int) -> bool:
    return node.op in _NORMS and any(_is_over(w.axes[-1], space) for w in node.weights)


def _hands_on(node: Node, space: int, is_mean: bool) -> bool:
    if node.op.partition("/")[0] in _HOMOGENEOUS:
        return not is_mean  # a mean of units would not remain their mean
    if node.op in _ADDED:
        return any(_is_over(weight.axes[-1], space) for weight in node.weights)
    return node.op.partition("/")[0] in _PASSING or "times" in (node.settings or {})


def _makes(node: Node, space: int) -> bool:
    made = [
        weight.kind
        for weight in node.weights
        for axis in weight.axes
        if axis.role == "out" and _is_over(axis, space)
    ]
    is_linear = node.op.partition("/")[0] in _PRODUCERS
    return bool(made) and (is_linear or {*made} == {*node.kinds("scaling")})


def _reads(node: Node, space: int) -> bool:
    """Whether a node reads these units, from a single input so that it is known which."""
    return len(node.inputs) == 1 and any(
        axis.role == "in" and _is_over(axis, space) for w in node.weights for axis in w.axes
    )


def _is_over(axis: Axis, space: int) -> bool:
    return [(s.space, s.place, s.inner) for s in axis.segments] == [(space, (), 1)]
