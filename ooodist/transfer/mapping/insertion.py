"""Initializes the operators that only the child has, such that its function does not change.

::

    x -> new convolution -> ...           the identity (Net2DeeperNet, Chen et al. 2016, 2.2):
                                          exact after a ReLU, and where nothing is between
    x -> new branch -> + x -> ...         the last operator of the branch makes zeros
    x -> new branch -> concat with x      what reads the new units multiplies them by zero
                                          (transform.py does that)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ooodist.transfer.graph.graph import Axis, Graph, Node
from ooodist.transfer.mapping.units import NOTHING, Pairs, UnitMaps, Values

# The weights of an operator at the end of a branch that must be zero for its output to be zero.
_LAST = {
    "BatchNormalization": ("gamma", "beta"),
    "LayerNormalization": ("gamma", "beta"),
    "GroupNormalization": ("gamma", "beta"),
    "RMSNormalization": ("scale",),
    "Dense": ("kernel", "bias"),
    "Conv1D": ("kernel", "bias"),
    "Conv2D": ("kernel", "bias"),
    "Conv3D": ("kernel", "bias"),
    "SeparableConv1D": ("kernel", "bias"),
    "SeparableConv2D": ("kernel", "bias"),
    "MultiHeadAttention": ("output/kernel", "output/bias"),
}
# These turn zeros into zeros, and pass gradients on;
_ZERO_STAYS_ZERO = ("gelu", "silu", "tanh", "hard_silu", "Reshape", "leaky_relu", "LeakyReLU")
# these pass gradients on only where their input is larger than zero.
_RELU = ("relu", "relu6")
LITTLE = 1e-6
"""Factor of the weights at the end of a new branch before a ReLU: not zero, so that it learns."""
_DIRECT = ("Dense", "Conv1D", "Conv2D", "Conv3D")
_DEPTHWISE = ("DepthwiseConv1D", "DepthwiseConv2D")


@dataclass
class Inserted:
    """New operators that change nothing.

    Attributes:
        values: their weights, by name.
        norms: names of the gammas of the batch norms among them.
        silent: numbers of the operators in branches that add zeros.
    """

    values: dict[str, np.ndarray] = field(default_factory=dict)
    norms: tuple[str, ...] = ()
    silent: frozenset[int] = frozenset()


def insert(
    child: Graph, own: Values, pairs: Pairs, maps: UnitMaps, made: frozenset[str]
) -> Inserted:
    """Makes new operators change nothing, where possible.

    Args:
        child: the new model.
        own: its freshly initialized weights, by name.
        pairs: numbers of the operators that match.
        maps: the maps of units; spaces that new operators make are added.
        made: names of the weights that come from the parent.
    """
    known = {mine for mine, _ in pairs}
    inserted = Inserted()
    silenced = silenced_branches(child, known)
    for last, factor in silenced.values():
        scale, *offsets = _last_kinds(child.nodes[last])
        for weight in child.nodes[last].weights:
            if weight.kind == scale:
                added = child.nodes[last].added_to(weight)
                inserted.values[weight.name] = (own[weight.name] + added) * factor - added
            elif weight.kind in offsets:
                inserted.values[weight.name] = np.zeros_like(own[weight.name])
    in_branches = frozenset(number for branch in silenced for number in branch)
    inserted.silent = in_branches
    for number, node in enumerate(child.nodes):
        if number in known or number in in_branches or not node.weights:
            continue
        if any(weight.name in made for weight in node.weights):
            continue
        values = _identity(child, node, own, maps)
        inserted.values |= values
        if values and node.op == "BatchNormalization":
            inserted.norms += tuple(w.name for w in node.weights if w.kind == "gamma")
    return inserted


def silenced_branches(child: Graph, known: set[int]) -> dict[frozenset[int], tuple[int, float]]:
    """The branches that add something new, as sets of operators.

    For each, the operator that is to make zeros, and the factor of its own weights: 0 or LITTLE.
    """
    ancestors = _ancestors(child)
    silenced: dict[frozenset[int], tuple[int, float]] = {}
    for node in child.nodes:
        if node.op != "Add" or len(node.inputs) < 2:
            continue
        shared = ancestors[node.inputs[0]]
        for source in node.inputs:
            shared &= ancestors[source]
        branches = [_numbers(ancestors[source] & ~shared) for source in node.inputs]
        new = [
            number
            for number, branch in enumerate(branches)
            if not branch & known and any(child.nodes[each].weights for each in branch)
        ]
        if len(new) == len(branches):  # one must pass its input on: the one with fewest weights
            new.remove(min(new, key=lambda number: _num_weights(child, branches[number])))
        for number in new:
            last = _last_affine(child, node.inputs[number], branches[number])
            if last is not None:
                silenced[branches[number]] = last
    return silenced


def _last_kinds(node: Node) -> Sequence[str]:
    """The weights that must be zero for an operator to make zeros, the scale first."""
    return _LAST.get(_base(node.op)) or node.kinds("scaling")


def _base(op: str) -> str:
    """The kind of an operator without its strides."""
    return op.partition("/")[0]


def _ancestors(graph: Graph) -> list[int]:
    """Computes for each operator a bit mask of itself and all before it."""
    found: list[int] = []
    for number, node in enumerate(graph.nodes):
        bits = 1 << number
        for source in node.inputs:
            bits |= found[source]
        found.append(bits)
    return found


def _numbers(bits: int) -> frozenset[int]:
    text = bin(bits)[:1:-1]  # the lowest bit first
    return frozenset(number for number, bit in enumerate(text) if bit == "1")


def _num_weights(graph: Graph, branch: frozenset[int]) -> int:
    return sum(len(graph.nodes[number].weights) for number in branch)


def _last_affine(
    graph: Graph, number: int, branch: frozenset[int], factor: float = 0.0
) -> tuple[int, float] | None:
    """A branch's last operator that can make zeros that stay zeros, and the factor."""
    if number not in branch:
        return None
    node = graph.nodes[number]
    kinds = [weight.kind for weight in node.weights]
    if kinds:
        if [*_last_kinds(node), ""][0] in kinds:
            return number, factor
        if node.op != "BatchNormalization":  # without a scale it keeps zeros as they are
            return None
    if node.op in _RELU:
        factor = LITTLE
    elif node.op not in (*_ZERO_STAYS_ZERO, "Multiply", "BatchNormalization"):
        return None
    found = (_last_affine(graph, source, branch, factor) for source in node.inputs)
    return next((last for last in found if last is not None), None)


def _identity(child: Graph, node: Node, own: Values, maps: UnitMaps) -> dict[str, np.ndarray]:
    """Weights with which an operator passes on what it reads; empty if it cannot."""
    by_kind = {weight.kind: weight for weight in node.weights}
    settings = node.settings or {}
    values = {weight.name: np.zeros_like(own[weight.name]) for weight in node.weights}
    if node.op == "BatchNormalization":
        epsilon = settings["epsilon"]
        assert isinstance(epsilon, float)
        has_scale = "gamma" in by_kind
        variance = 1.0 if has_scale else 1 - epsilon
        for kind, value in (("gamma", np.sqrt(1 + epsilon)), ("moving_variance", variance)):
            if kind in by_kind:
                values[by_kind[kind].name][...] = value
        return values
    if not _keeps_pixels(node):
        return {}
    kernel = by_kind["kernel"]
    sizes = [axis.size for axis in kernel.axes if axis.role == "kernel"]
    # The last step of a causal kernel is the current one.
    is_causal = settings.get("padding") == "causal"
    center = tuple(size - 1 if is_causal else (size - 1) // 2 for size in sizes)
    if node.op in _DEPTHWISE:
        values[kernel.name][center] = 1
        return values
    reads, makes = kernel.axes[-2:]
    if node.op not in _DIRECT or reads.role != "in":
        return {}
    matrix = _identity_matrix(child, reads, makes, maps)
    if matrix is None:
        return {}
    values[kernel.name][center] = matrix
    return values


def _keeps_pixels(node: Node) -> bool:
    if node.op == "Dense":
        return True
    settings = node.settings or {}
    strides, padding = settings.get("strides"), settings.get("padding")
    kernel = next((w for w in node.weights if w.kind == "kernel"), None)
    if kernel is None or node.op not in (*_DIRECT, *_DEPTHWISE):
        return False
    sizes = [axis.size for axis in kernel.axes if axis.role == "kernel"]
    same = padding in ("same", "causal") or set(sizes) == {1}
    return same and strides == [1] * len(sizes)


def _identity_matrix(child: Graph, reads: Axis, makes: Axis, maps: UnitMaps) -> np.ndarray | None:
    """A matrix that makes each unit the mean of the copies of its unit of the parent.

    Its shape is (read, made). None if it is unknown which unit that is.
    """
    if not reads.segments or not makes.segments or any(s.grid for s in reads.segments):
        return None
    if len(makes.segments) == len(reads.segments):
        for mine, source in zip(makes.segments, reads.segments, strict=True):
            maps.inherit(mine.space, source.space)
    one, other = (_origins(child, axis, maps) for axis in (reads, makes))
    if one is None or other is None:  # the units do not come from the parent
        if reads.size != makes.size:
            return None
        return np.eye(reads.size, dtype=np.float32)
    same = (one[:, None, :] == other[None, :, :]).all(axis=2)
    same &= (one[:, 1] != NOTHING)[:, None]
    counts = same.sum(axis=0)
    if not counts.any():
        return None
    matrix: np.ndarray = (same / np.maximum(1, counts)).astype(np.float32)
    return matrix


def _origins(child: Graph, axis: Axis, maps: UnitMaps) -> np.ndarray | None:
    """Finds for each index its space and unit in the parent, (size, 2); None if unknown."""
    found: list[np.ndarray] = []
    for segment in axis.segments:
        partner = maps.partner(segment.space)
        if partner is None or segment.inner != 1:
            return None
        units = maps.units(segment.space, partner)
        found.append(np.stack([np.full(len(units), partner), units], axis=1))
    return np.concatenate(found)
