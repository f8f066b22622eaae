"""Balances constants that differ between a child and its parent.

Gemma multiplies its embeddings by the root of their width. A wider child has a larger constant, so
what it multiplies is made smaller by as much.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ooodist.transfer.graph.graph import Graph, Node
from ooodist.transfer.mapping.units import Pairs

_SCALED = {"Embedding": ("table",), "Dense": ("kernel", "bias")}
"""The weights that an operator's output is proportional to."""


def balanced(
    child: Graph, parent: Graph, pairs: Pairs, made: dict[str, np.ndarray]
) -> tuple[dict[int, float], tuple[str, ...]]:
    """Scales weights whose operators are multiplied by another constant than in the parent.

    Args:
        child, parent: the two models.
        pairs: numbers of the operators that match.
        made: the weights that come from the parent, which are changed.

    Returns:
        The factor of the result of each operator that was scaled, and where none could be.
    """
    factors: dict[int, float] = {}
    departures = []
    for number, partner in pairs:
        node = child.nodes[number]
        ours, theirs = _times(node), _times(parent.nodes[partner])
        if ours == theirs:
            continue
        source = node.inputs[0]
        weights = [
            weight.name
            for weight in child.nodes[source].weights
            if weight.kind in _SCALED.get(child.nodes[source].op, ())
        ]
        is_read_once = sum(source in each.inputs for each in child.nodes) == 1
        if not ours or not weights or not is_read_once or not made.keys() >= {*weights}:
            departures.append(
                f"{node.name} multiplies by {ours:.4g}, and its partner by {theirs:.4g}"
            )
            continue
        factors[source] = theirs / ours
        for name in weights:
            value = made[name]
            made[name] = (value.astype(np.float32) * factors[source]).astype(value.dtype)
    return factors, tuple(departures)


def _times(node: Node) -> float:
    """The constant by which an operator multiplies."""
    settings: Mapping[str, object] = node.settings or {}
    times = settings.get("times", 1.0)
    return float(times) if isinstance(times, int | float) else 1.0
