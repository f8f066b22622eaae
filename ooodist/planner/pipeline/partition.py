"""Splits layers into pipeline stages such that the slowest stage is as fast as possible.

::

    layers    0 1 2 | 3 4 | 5 6 | 7
    stage     0       1     2     3

The split is exact: dynamic programming over (stages made, layers placed). Among equally fast
splits, the one that sends the fewest bytes between stages is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ooodist.errors import UserError


class Layer(Protocol):
    """The costs used by a split; see :class:`ooodist.planner.pipeline.layer_costs.LayerCost`."""

    @property
    def seconds(self) -> float: ...
    @property
    def base_bytes(self) -> int: ...
    @property
    def saved_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...


def partition(
    layers: Sequence[Layer],
    stages: int,
    *,
    in_flight: Sequence[int] | None = None,
    memory_limit: int | None = None,
) -> tuple[range, ...]:
    """Returns the range of layers of each stage; every stage has at least one.

    Args:
        layers: the layers, in order.
        stages: the number of stages.
        in_flight: micro-batches that each stage keeps at a time; None: one.
        memory_limit: bytes that a stage may keep; None: no limit.

    Raises:
        UserError: there are fewer layers than stages, or no split fits into the memory limit.
    """
    if not 1 <= stages <= len(layers):
        raise UserError(
            f"{len(layers)} layers cannot be split into {stages} stages: each stage needs at least "
            "one; use fewer stages, or a model with more layers"
        )
    in_flight = in_flight or [1] * stages
    seconds = _sums(layer.seconds for layer in layers)
    base = _sums(layer.base_bytes for layer in layers)
    saved = _sums(layer.saved_bytes for layer in layers)

    def seconds_of(stage: int, begin: int, end: int) -> float:
        num_bytes = base[end] - base[begin] + in_flight[stage] * (saved[end] - saved[begin])
        if memory_limit is not None and num_bytes > memory_limit:
            return math.inf
        return seconds[end] - seconds[begin]

    slowest, _ = _best(len(layers), stages, seconds_of, max)
    if slowest == math.inf:
        raise UserError(
            f"no split of {len(layers)} layers into {stages} stages fits into a memory limit of "
            f"{memory_limit} bytes a stage: raise it, use more stages, or a schedule with fewer "
            "micro-batches in flight"
        )

    def sent(stage: int, begin: int, end: int) -> float:
        # Sums of floats differ in their last digits depending on the split.
        if seconds_of(stage, begin, end) > slowest * (1 + 1e-12):
            return math.inf
        return layers[end - 1].sent_bytes if end < len(layers) else 0

    return _best(len(layers), stages, sent, lambda one, other: one + other)[1]


def _best(
    layers: int,
    stages: int,
    cost: Callable[[int, int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, tuple[range, ...]]:
    """Returns the split whose stage costs, combined by ``join``, are least, after that cost."""
    # best[j]: the least cost with the first j layers in the stages so far, and the stages' ends.
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *[(math.inf, ())] * layers]
    for stage in range(stages):
        longer: list[tuple[float, tuple[int, ...]]] = [(math.inf, ())] * (layers + 1)
        for end in range(stage + 1, layers - (stages - 1 - stage) + 1):
            longer[end] = min(
                (join(best[begin][0], cost(stage, begin, end)), (*best[begin][1], end))
                for begin in range(stage, end)
            )
        best = longer
    least, ends = best[layers]
    return least, tuple(itertools.starmap(range, itertools.pairwise((0, *ends))))


def _sums(values: Iterable[float]) -> list[float]:
    return list(itertools.accumulate(values, initial=0))
