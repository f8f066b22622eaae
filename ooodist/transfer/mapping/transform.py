"""Makes a child's weights from those of its parent.

Where the child is wider, units are copied, and what reads them takes a part from each copy. The
parts are unequal, so that copies learn different things, but they add up to one, so that the
function stays the same::

    parent    x ---- w ----> y              y = w x
    child     x1 --- a w --> y              x1 = x2 = x,  a + b = 1
              x2 --- b w --> y              (Net2WiderNet, Chen et al. 2016, section 2.3)

Operators without a partner become the identity, where they can: see insertion.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ooodist.transfer.graph.graph import Axis, Graph, Node, Weight
from ooodist.transfer.mapping import stretch
from ooodist.transfer.mapping.constants import balanced
from ooodist.transfer.mapping.departures import departures
from ooodist.transfer.mapping.insertion import Inserted, insert, silenced_branches
from ooodist.transfer.mapping.report import Action, TensorReport
from ooodist.transfer.mapping.units import NOTHING, Pairs, UnitMaps, Values, common_weights

logger = logging.getLogger("ooodist")

LEAST_PART = 0.5  # a copy's least part, relative to equal parts, before all are normalized


@dataclass(frozen=True)
class Transformed:
    """The initial weights of a child.

    Attributes:
        values: all of its weights, by name.
        report: what became of each, in the model's order.
        inserted_norms: names of the gammas of batch norms that are the identity as long as their
            input has mean 0 and variance 1; calibration lifts that condition.
        departures: where the child computes something other than its parent, and why, as far as
            the graphs show it.
    """

    values: dict[str, np.ndarray]
    report: tuple[TensorReport, ...]
    inserted_norms: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()

    @property
    def carried(self) -> float:
        """The share of the child's parameters that come from the parent, 0 to 1."""
        total = sum(each.parameters for each in self.report)
        carried = sum(
            each.parameters
            for each in self.report
            if each.action in ("copied", "widened", "narrowed")
        )
        return carried / max(1, total)

    def names(self, *actions: Action) -> tuple[str, ...]:
        """The names of the weights with one of these actions."""
        return tuple(each.name for each in self.report if each.action in actions)


def transform(
    child: Graph, own: Values, parent: Graph, values: Values, pairs: Pairs, *, seed: int = 0
) -> Transformed:
    """Makes the child's initial weights.

    Args:
        child: the new model.
        own: its freshly initialized weights, by name; those without a partner stay.
        parent: the trained model.
        values: its weights, by name.
        pairs: numbers of the matching operators, the child's and the parent's, from match.py.
        seed: seed of the unequal parts; the same on all ranks.
    """
    maps = UnitMaps(child, parent, pairs, values)
    known = {mine for mine, _ in pairs}
    silent = {number for branch in silenced_branches(child, known) for number in branch}
    stretches = stretch.find(child, maps, known | silent)
    maker = _Maker(child, parent, maps, stretches, seed)
    made: dict[str, np.ndarray] = {}
    actions: dict[str, tuple[Action, str]] = {}
    for mine, its, weight, other in common_weights(child, parent, pairs):
        node = child.nodes[mine]
        added, its_added = node.added_to(weight), parent.nodes[its].added_to(other)
        fresh = _plus(own[weight.name], added)
        value = _plus(_precise(values[other.name]), its_added)
        result = maker.weight(node, weight, other, value, fresh)
        if result is not None:
            result = stretch.scaled(stretches, mine, node, weight, result)
            made[weight.name] = _plus(result, -added).astype(own[weight.name].dtype)
            actions[weight.name] = _action(result, value), other.name
    # If nothing comes from the parent, there is no function to keep.
    inserted = insert(child, own, pairs, maker.maps, frozenset(made)) if made else Inserted()
    for name, value in inserted.values.items():
        made[name] = value.astype(own[name].dtype)
        actions[name] = "identity", ""
    factors, unbalanced = balanced(child, parent, pairs, made)
    _divide_before_tied(child, parent, pairs, maker, made, factors)
    report = tuple(
        TensorReport(w.name, *_reported(actions, w.name, own[w.name].size))
        for node in child.nodes
        for w in node.weights
    )
    complete = {each.name: made.get(each.name, own[each.name]) for each in report}
    found = departures(
        child,
        parent,
        pairs,
        maker.maps,
        made=frozenset(made) - frozenset(inserted.values),
        inserted=frozenset(inserted.values),
        silent=inserted.silent,
        kept_norms={norm for each in stretches for norm in each.norms},
    )
    return Transformed(complete, report, inserted.norms, found + unbalanced)


def _reported(
    actions: Mapping[str, tuple[Action, str]], name: str, size: int
) -> tuple[Action, int, str]:
    action, source = actions.get(name, ("fresh", ""))
    return action, size, source


def _precise(value: np.ndarray) -> np.ndarray:
    """The values in at least 32 bits."""
    return value.astype(np.result_type(value.dtype, np.float32))


def _plus(value: np.ndarray, added: float) -> np.ndarray:
    """A weight as its operator uses it, so precisely that it can be undone."""
    return value.astype(np.float64) + added if added else value


def _action(mine: np.ndarray, its: np.ndarray) -> Action:
    if mine.shape == its.shape and np.array_equal(mine, its, equal_nan=True):
        return "copied"
    # A weight of the same shape that differs has lost some units to others.
    is_larger = all(one >= other for one, other in zip(mine.shape, its.shape, strict=True))
    return "widened" if is_larger and mine.shape != its.shape else "narrowed"


class _Maker:
    """Makes the weights that have a partner."""

    def __init__(
        self,
        child: Graph,
        parent: Graph,
        maps: UnitMaps,
        stretches: Sequence[stretch.Stretch],
        seed: int,
    ) -> None:
        self.maps = maps
        self.stretches = stretches
        self._child, self._parent = child, parent
        self._seed = seed

    def weight(
        self, node: Node, mine: Weight, its: Weight, value: np.ndarray, fresh: np.ndarray
    ) -> np.ndarray | None:
        """Makes a weight from its partner's value; None if nothing can be taken from there."""
        if [axis.role for axis in mine.axes] != [axis.role for axis in its.axes]:
            return value if mine.shape == its.shape else None
        both = zip(mine.axes, its.axes, strict=True)
        if any(one.role == "fixed" and one.size != other.size for one, other in both):
            return None
        if any(axis.role == "grouped" for axis in mine.axes):
            return self._grouped(node, mine, its, value, fresh)
        maps = [self._map(node, number, mine, its) for number in range(len(mine.axes))]
        if any((each == NOTHING).all() for each in maps):
            return None
        result = _taken(value, maps)
        reads = [axis.role == "in" for axis in mine.axes]
        for number, each in enumerate(maps):
            if reads[number]:
                result = result * self._parts(each, number, result.shape, reads, mine.name)
        scale = self._query_scale(node, mine, its)
        if scale is not None:
            result = result * scale
        return _filled(result, maps, mine.axes, fresh)

    def _map(self, node: Node, number: int, mine: Weight, its: Weight) -> np.ndarray:
        one, other = mine.axes[number], its.axes[number]
        if one.role == "kernel":
            return _placed(node, number, one.size, other.size)
        return self.maps.axis(one, other)

    def random(self, name: str) -> np.random.Generator:
        """A weight's random generator, independent of what else is made."""
        return np.random.default_rng([self._seed, *name.encode()])

    def _parts(
        self,
        indices: np.ndarray,
        number: int,
        shape: Sequence[int],
        reads: Sequence[bool],
        name: str,
    ) -> np.ndarray:
        """The factors by which copies on an axis that is summed over are read.

        They differ for each number that is made, or all copies would be alike to their readers.
        """
        return _unequal(
            indices,
            number,
            [1 if r else s for s, r in zip(shape, reads, strict=True)],
            self.random(name),
        )

    def _query_scale(self, node: Node, mine: Weight, its: Weight) -> np.ndarray | None:
        """Factors for queries: attention sums over the key width, divides by its root."""
        if mine.kind not in node.kinds("dots"):
            return None
        one, other = mine.axes[-1], its.axes[-1]
        if one.size == other.size:
            return None
        indices = self.maps.axis(one, other)
        parts = _unequal(indices, 0, [one.size], self.random(node.name))
        scale: np.ndarray = parts * np.sqrt(one.size / other.size)
        return scale

    def _grouped(
        self, node: Node, mine: Weight, its: Weight, value: np.ndarray, fresh: np.ndarray
    ) -> np.ndarray | None:
        """Makes the kernel of a grouped convolution, whose groups each read some of the units."""
        at = len(mine.axes) - 2
        reads, makes = (self.maps.axis(mine.axes[n], its.axes[n]) for n in (at, at + 1))
        if (reads == NOTHING).all() or (makes == NOTHING).all():
            return None
        for number in range(at):
            value = _taken_along(
                value, _placed(node, number, mine.axes[number].size, its.axes[number].size), number
            )
        size, its_size = mine.axes[at].size, its.axes[at].size
        groups = len(reads) // size
        its_made = its.axes[-1].size * its_size // _read(self._parent, its.axes[at])
        made = len(makes) // groups
        result = np.zeros(mine.shape, np.float32)
        random = self.random(mine.name)
        for group in range(groups):
            outputs = makes[group * made : (group + 1) * made]
            inputs = reads[group * size : (group + 1) * size]
            for column, output in enumerate(outputs):
                if output == NOTHING:
                    result[..., group * made + column] = fresh[..., group * made + column]
                    continue
                first = output // its_made * its_size
                inside = np.where(
                    (inputs >= first) & (inputs < first + its_size), inputs - first, NOTHING
                )
                column_of_kernel = _taken_along(value[..., output], inside, at)
                parts = _unequal(inside, at, [1] * at + [size], random)
                result[..., group * made + column] = column_of_kernel * parts
        return result


def _read(graph: Graph, axis: Axis) -> int:
    return sum(graph.spaces[segment.space].size * segment.inner for segment in axis.segments)


def _unequal(
    indices: np.ndarray, number: int, shape: Sequence[int], random: np.random.Generator
) -> np.ndarray:
    """Random factors for copies that add up to one; 1 for what occurs once.

    Args:
        indices: what each index is a copy of.
        number: number of the axis with these indices.
        shape: shape of the factors, except for that axis.
        random: the generator that draws them.
    """
    factors = np.ones((len(indices), *(size for n, size in enumerate(shape) if n != number)))
    counts = np.bincount(indices[indices != NOTHING], minlength=1)
    copied = (indices != NOTHING) & (counts[indices.clip(0)] > 1)
    if not copied.any():
        return np.ones([1] * len(shape), np.float32)
    drawn = random.uniform(LEAST_PART, 2 - LEAST_PART, (int(copied.sum()), *factors.shape[1:]))
    sums = np.zeros((len(counts), *factors.shape[1:]))
    np.add.at(sums, indices[copied], drawn)
    factors[copied] = drawn / sums[indices[copied]]
    return np.moveaxis(factors, 0, number).astype(np.float32)


def _taken(value: np.ndarray, maps: Sequence[np.ndarray]) -> np.ndarray:
    for number, indices in enumerate(maps):
        value = _taken_along(value, indices, number)
    return value


def _taken_along(value: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    """Takes these indices of an axis; zeros for NOTHING."""
    if np.array_equal(indices, np.arange(value.shape[axis])):
        return value
    taken = np.take(value, indices.clip(0), axis=axis)
    if (indices == NOTHING).any():
        missing: list[slice | np.ndarray] = [slice(None)] * value.ndim
        missing[axis] = indices == NOTHING
        taken[tuple(missing)] = 0
    return taken


def _filled(
    result: np.ndarray, maps: Sequence[np.ndarray], axes: Sequence[Axis], fresh: np.ndarray
) -> np.ndarray:
    """Fills in fresh numbers for units that the parent does not have.

    What a known unit reads from a new one stays zero: the new one has no effect at first.
    """
    for number, (indices, axis) in enumerate(zip(maps, axes, strict=True)):
        if axis.role not in ("in", "kernel") and (indices == NOTHING).any():
            new: list[slice | np.ndarray] = [slice(None)] * result.ndim
            new[number] = indices == NOTHING
            result = result.copy()
            result[tuple(new)] = fresh[tuple(new)]
    return result


def _placed(node: Node, number: int, size: int, its_size: int) -> np.ndarray:
    """The parent's index for each of a kernel's, so that both cover the same pixels."""
    shift = (size - its_size) // 2
    settings = node.settings or {}
    if settings.get("padding") == "causal":  # the last step of the kernel is the current one
        shift = size - its_size
    elif settings.get("padding") == "same":
        shift = _before(node, number, size) - _before(node, number, its_size)
    indices = np.arange(size) - shift
    return np.where((indices >= 0) & (indices < its_size), indices, NOTHING)


def _before(node: Node, number: int, size: int) -> int:
    """The steps of a kernel before the first pixel, with TensorFlow's "same" padding."""
    settings = node.settings or {}
    pixels, stride, dilation = (
        values[number] if isinstance(values := settings[key], list) else 1
        for key in ("pixels", "strides", "dilation")
    )
    if pixels < 0:  # unknown
        return (size - 1) // 2
    needed = (-(-pixels // stride) - 1) * stride + (size - 1) * dilation + 1 - pixels
    return max(0, needed) // 2 // dilation


def _divide_before_tied(
    child: Graph,
    parent: Graph,
    pairs: Pairs,
    maker: _Maker,
    made: dict[str, np.ndarray],
    factors: Mapping[int, float],
) -> None:
    """Scales down copied units that a tied table reads, instead of the table.

    The table also makes units, so it cannot be divided; what comes right before it can.
    ``factors``: those of the operators that were balanced.
    """
    partners = dict(pairs)
    for node in child.nodes:
        owner = (node.settings or {}).get("tied")
        if node.op != "ReversedEmbedding" or not isinstance(owner, int) or owner not in partners:
            continue
        tables = child.nodes[owner].weights, parent.nodes[partners[owner]].weights
        mine, its = (next(w for w in weights if w.kind == "table") for weights in tables)
        indices = maker.maps.axis(mine.axes[1], its.axes[1])
        source = node.inputs[0]
        scales = [each.scales for each in maker.stretches if source in each.tied]
        factor = factors.get(owner, 1.0)
        if len(np.unique(indices)) == len(indices) and not scales and factor == 1:
            continue
        readers = sum(source in other.inputs for other in child.nodes)
        scaled = _scaled_by(child.nodes[source]) if readers == 1 else ()
        if not scaled:
            logger.warning(
                "warm start: %s reads copied units with a tied table, and nothing before it can be "
                "divided, so that its outputs are larger than those of the parent",
                node.name,
            )
        parts = _unequal(indices, 0, [len(indices)], maker.random(mine.name)) / factor
        if scales:
            parts = parts / scales[0]
        for weight in scaled:
            if weight.name in made:
                value, added = made[weight.name], child.nodes[source].added_to(weight)
                used = _plus(_precise(value), added) * parts
                made[weight.name] = _plus(used, -added).astype(value.dtype)


def _scaled_by(node: Node) -> tuple[Weight, ...]:
    """The weights that scale an operator's output, whose units are on their last axis."""
    kinds = {
        "LayerNormalization": ("gamma", "beta"),
        "BatchNormalization": ("gamma", "beta"),
        "RMSNormalization": ("scale",),
        "Dense": ("kernel", "bias"),
    }.get(node.op, ())
    return tuple(weight for weight in node.weights if weight.kind in kinds)
