"""Finds where a child does not compute what its parent does.

Operator by operator, this module follows which result of the parent each result of the child is.
An operator with a partner has the result of that partner if it reads what that reads, and if its
weights lost nothing. A new one has the result of what it reads if it changes nothing. Wherever that
fails is a departure: it is noted, and what follows is examined as if it had not failed, so that
each is noted once.

Settings in which operators of one kind may differ, such as an epsilon, are not examined. So whether
the function was kept is also measured: answers.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ooodist.transfer.graph.graph import Axis, Graph, Node, Weight
from ooodist.transfer.mapping.stretch import dots_over
from ooodist.transfer.mapping.units import NOTHING, Pairs, UnitMaps, common_weights

NEW = -1
"""In place of the number of a parent's operator: the parent has no such result."""

_POSITIVE = ("relu", "relu6", "sigmoid", "softmax", "softplus", "exp", "square", "absolute", "abs")
_STAYS_POSITIVE = (
    *("Add", "Multiply", "Maximum", "Concatenate", "Flatten", "Reshape", "GetItem", "Permute"),
    *("MaxPooling", "AveragePooling", "GlobalMaxPooling", "GlobalAveragePooling", "ZeroPadding"),
    *("Cropping", "UpSampling", "RepeatVector"),
)
_IN_ANY_ORDER = ("Add", "Multiply", "Average", "Maximum", "Minimum")
AVERAGING = ("LayerNormalization", "GroupNormalization", "RMSNormalization")
"""Norms in which each unit depends on all others."""


def departures(
    child: Graph,
    parent: Graph,
    pairs: Pairs,
    maps: UnitMaps,
    *,
    made: Collection[str],
    inserted: Collection[str],
    silent: Collection[int],
    kept_norms: Collection[int] = (),
) -> tuple[str, ...]:
    """Where the child computes something else, and why, in its order.

    Args:
        child: the model with the new weights.
        parent: the model whose function is to be kept.
        pairs: numbers of the operators that match.
        maps: the maps by which the weights were made.
        made: names of the weights that come from the parent.
        inserted: names of the weights that make a new operator change nothing.
        silent: operators of new branches, which add zeros.
        kept_norms: norms that are exact although some of their units occur more often than others.
    """
    walk = _Walk(child, parent, dict(pairs), maps, frozenset(silent), frozenset(inserted))
    walk.run()
    found = dict(walk.found)
    for number, cause in _of_weights(child, parent, pairs, maps, made, kept_norms, silent):
        found.setdefault(number, cause)
    return tuple(cause for _, cause in sorted(found.items()))


class _Walk:
    """Walks through the child, in its order."""

    def __init__(
        self,
        child: Graph,
        parent: Graph,
        partners: dict[int, int],
        maps: UnitMaps,
        silent: frozenset[int],
        inserted: frozenset[str],
    ) -> None:
        self.found: dict[int, str] = {}
        self._child, self._parent = child, parent
        self._partners, self._maps = partners, maps
        self._silent, self._inserted = silent, inserted
        self._results: dict[int, int] = {}
        self._narrow: set[int] = set()  # operators that lack some units of their result
        self._unheard: set[int] = set()  # new operators whose units are multiplied by zero
        self._positive = _positive(parent)
        self._by_inputs = {
            (node.op, node.inputs): number
            for number, node in enumerate(parent.nodes)
            if not node.weights
        }

    def run(self) -> None:
        for number, node in enumerate(self._child.nodes):
            if number in self._silent:
                continue
            heard = [each for each in node.inputs if each not in self._silent]
            read = [self._results[each] for each in heard]
            narrow = [each for each in heard if each in self._narrow]
            if node.op.startswith("Concatenate"):  # new inputs are multiplied by zero
                heard = [each for each in heard if each not in self._unheard]
                read = [*dict.fromkeys(self._results[each] for each in heard)]
                whole = {self._results[each] for each in heard if each not in self._narrow}
                narrow = [each for each in narrow if self._results[each] not in whole]
            partner = self._partners.get(number)
            if partner is None:
                self._results[number] = self._new(number, node, heard, read)
                if narrow:
                    self._narrow.add(number)
                if self._results[number] == NEW and self._is_unheard(node):
                    self._unheard.add(number)
                continue
            self._results[number] = partner
            its = list(self._parent.nodes[partner].inputs)
            same = sorted(read) == sorted(its) if node.op in _IN_ANY_ORDER else read == its
            if not same:
                self.found[number] = self._reads_something_else(node, heard, read, its)
            elif narrow:
                names = self._named(narrow)
                self.found[number] = f"{node.name} reads {names}, too narrow to hand on all units"
        self._outputs()

    def _new(self, number: int, node: Node, heard: Sequence[int], read: Sequence[int]) -> int:
        """The result of an operator without a partner."""
        if node.weights:
            is_kept = all(w.name in self._inserted for w in node.weights) and len(read) == 1
            if not is_kept:
                return NEW
            if read[0] != NEW and self._is_too_narrow(node):
                self._narrow.add(number)
            return read[0]
        if node.op == "Input" or not read or NEW in read:
            return NEW
        if len(read) == 1 and self._changes_nothing(node, len(heard), read[0]):
            return read[0]
        same = (node.op, tuple(read))
        if same in self._by_inputs:  # a pair that the matching missed
            return self._by_inputs[same]
        return NEW

    def _changes_nothing(self, node: Node, heard: int, result: int) -> bool:
        if node.op.startswith("Concatenate"):
            return True
        its = self._parent.nodes[result].op
        return (
            (node.op in ("Add", "Average", "Maximum", "Minimum") and heard == 1)
            or (node.op == "relu" and self._positive[result])
            or node.op == its == "relu6"
        )

    def _is_unheard(self, node: Node) -> bool:
        """Whether all readers of a new operator's units multiply them by zero."""
        spaces = _made_spaces(node)
        if not spaces:  # it passes on the units that it reads
            return bool(node.inputs) and self._unheard.issuperset(node.inputs)
        return all(map(self._maps.is_new, spaces))

    def _named(self, numbers: Sequence[int]) -> str:
        return ", ".join(self._child.nodes[each].name for each in numbers)

    def _is_too_narrow(self, node: Node) -> bool:
        for space in _made_spaces(node):
            partner = self._maps.partner(space)
            if partner is not None:
                units = self._maps.units(space, partner)
                if len(np.unique(units[units != NOTHING])) < self._parent.spaces[partner].size:
                    return True
        return False

    def _reads_something_else(
        self, node: Node, heard: Sequence[int], read: Sequence[int], its: Sequence[int]
    ) -> str:
        new = [each for each in heard if self._results[each] == NEW]
        if new:
            return f"{node.name} reads {self._named(new)}, which the parent does not have"
        ours, theirs = (
            " and ".join(self._parent.nodes[each].name for each in each_read) or "nothing"
            for each_read in (read, its)
        )
        return f"{node.name} reads what the parent's {ours} makes, and its partner {theirs}"

    def _outputs(self) -> None:
        made = {self._results[n] for n in _ends(self._child) if n in self._results}
        missing = [n for n in _ends(self._parent) if n not in made]
        if missing:
            names = ", ".join(self._parent.nodes[each].name for each in missing)
            self.found[len(self._child.nodes)] = f"no output is that of the parent's {names}"


def _made_spaces(node: Node) -> set[int]:
    axes = [axis for weight in node.weights for axis in weight.axes if axis.role == "out"]
    return {segment.space for axis in axes for segment in axis.segments}


def _ends(graph: Graph) -> list[int]:
    """The operators that no other reads: they make the outputs."""
    read = {each for node in graph.nodes for each in node.inputs}
    return [
        number
        for number, node in enumerate(graph.nodes)
        if number not in read and node.op not in ("Input", "Unused")
    ]


def _positive(graph: Graph) -> list[bool]:
    """Tells for each operator whether its result is never below zero."""
    found: list[bool] = []
    for node in graph.nodes:
        base = node.op.partition("/")[0].rstrip("123D") if node.op not in _POSITIVE else node.op
        stays = base in _STAYS_POSITIVE and all(found[each] for each in node.inputs)
        found.append(base in _POSITIVE or (stays and bool(node.inputs)))
    return found


def _of_weights(
    child: Graph,
    parent: Graph,
    pairs: Pairs,
    maps: UnitMaps,
    made: Collection[str],
    kept_norms: Collection[int],
    silent: Collection[int],
) -> list[tuple[int, str]]:
    """What weights have lost: pairs of operator number and cause."""
    found = []
    partners = dict(pairs)
    for number, _, weight, other in common_weights(child, parent, pairs):
        node = child.nodes[number]
        if weight.name not in made:
            because = _because_unknown(child, number, weight)
            found.append((number, f"{weight.name} does not fit that of the parent{because}"))
            continue
        lost = _lost(weight, other, maps, child)
        if lost:
            found.append((number, f"{weight.name} {lost}{_because_unknown(child, number, weight)}"))
        elif number not in kept_norms:
            axes = _averaged(node, weight, child)
            unequal = [_unequal(weight.axes[at], other.axes[at], maps) for at in axes]
            if any(unequal):
                found.append((number, f"{node.name} ({node.op}) {max(unequal)}"))
    for space, described in enumerate(child.spaces):
        source = maps.partner(space)
        if source is not None and described.size > parent.spaces[source].size:
            found += [
                (number, f"{child.nodes[number].name} (Dot) adds up units that are there again")
                for number in dots_over(child, space) - frozenset(kept_norms)
            ]
    for number, node in enumerate(child.nodes):
        if number in partners and number not in silent:
            without = [w.name for w in node.weights if w.name not in made]
            if without:
                found.append((number, f"{without[0]} is new"))
    return found


def _averaged(node: Node, weight: Weight, child: Graph) -> list[int]:
    """The axes of a weight over units of which its operator takes a mean."""
    if node.op in AVERAGING:
        return [0]
    if not node.kinds("averaged"):
        return []
    return [
        at
        for at, axis in enumerate(weight.axes)
        if any(child.spaces[segment.space].averaged for segment in axis.segments)
    ]


def _lost(mine: Weight, its: Weight, maps: UnitMaps, child: Graph) -> str:
    for one, other in zip(mine.axes, its.axes, strict=True):
        if one.role == "kernel":
            if one.size < other.size:
                return f"has a kernel of {one.size}, and that of the parent {other.size}"
            continue
        if one.role == "grouped":
            if one.size != other.size:
                return "is in other groups"
            continue
        indices = maps.axis(one, other)
        left_out = other.size - len(np.unique(indices[indices != NOTHING]))
        if left_out > 0:
            return f"has no place for {left_out} of {other.size} units of the parent"
        spaces = [child.spaces[segment.space] for segment in one.segments]
        kinds = {space.kind for space in spaces}
        is_feature = any(space.averaged for space in spaces) and one.size > other.size
        is_new = (one.role == "out" and (indices == NOTHING).any()) or is_feature
        if "output" in kinds and is_new:
            return "makes outputs that the parent does not have"
        if "fixed" in kinds and (indices == NOTHING).any():
            return "has units that the parent does not have"
    return ""


def _because_unknown(child: Graph, number: int, weight: Weight) -> str:
    """Names the layer of which nothing is known that fixes the units of a weight, if one does.

    That is the weight's own, the next one that reads its operator, or the last one before it.
    """
    kinds = {child.spaces[s.space].kind for axis in weight.axes for s in axis.segments}
    if "fixed" not in kinds and any(axis.segments for axis in weight.axes):
        return ""
    after, before = {number}, {number}
    for at, node in enumerate(child.nodes):
        if after.intersection(node.inputs):
            after.add(at)
    for at in range(number, -1, -1):
        if at in before:
            before.update(child.nodes[at].inputs)
    for at in (*sorted(after), *sorted(before, reverse=True)):
        node = child.nodes[at]
        if (node.settings or {}).get("unknown"):
            return f", as nothing is known of layer {node.name} ({node.op})"
    return ""


def _unequal(one: Axis, other: Axis, maps: UnitMaps) -> str:
    if len(one.segments) != len(other.segments):
        return "has other groups of units than that of the parent"
    indices = maps.axis(one, other)
    if (indices == NOTHING).any():
        return "takes the mean of units of which some are new"
    at = 0
    sizes = _sizes(one, maps)
    for size in sizes:
        _, counts = np.unique(indices[at : at + size], return_counts=True)
        if len(set(counts.tolist())) > 1:
            return "takes the mean of units of which some are there more often than others"
        at += size
    return ""


def _sizes(axis: Axis, maps: UnitMaps) -> list[int]:
    return [maps.size(segment.space) * segment.inner for segment in axis.segments]
