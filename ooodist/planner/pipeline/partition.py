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
from typing import TYPE_CHECKING, TypeVar

from ooodist.errors import UserError
from ooodist.planner.pipeline.costs import LacksMemory

if TYPE_CHECKING:
    from ooodist.planner.pipeline.layer_costs import LayerCost

Cost = TypeVar("Cost", int, float)


def partition(
    layers: Sequence[LayerCost],
    stages: int,
    *,
    in_flight: Sequence[int] | None = None,
    memory_limit: int | None = None,
) -> tuple[range, ...]:
    """The range of layers of each stage; every stage has at least one.

    Args:
        layers: the layers, in order.
        stages: the number of stages.
        in_flight: micro-batches that each stage keeps at a time; None: one.
        memory_limit: bytes that a stage may keep; None: no limit.

    Raises:
        LacksMemory: no split fits into the memory limit.
        UserError: there are fewer layers than stages.
    """
    _check(layers, stages)
    bytes_of = _bytes_of(layers, in_flight or [1] * stages)
    seconds = _sums(layer.seconds for layer in layers)

    def seconds_of(stage: int, begin: int, end: int) -> float:
        if memory_limit is not None and bytes_of(stage, begin, end) > memory_limit:
            return math.inf
        return seconds[end] - seconds[begin]

    slowest, _ = _best(len(layers), stages, seconds_of, max)
    if slowest == math.inf:
        assert memory_limit is not None
        least, parts = _best(len(layers), stages, bytes_of, max)
        sizes = [bytes_of(number, part.start, part.stop) for number, part in enumerate(parts)]
        stage, lacking = sizes.index(max(sizes)), round(least) - memory_limit
        raise LacksMemory(
            f"no split of {len(layers)} layers into {stages} stages fits into a memory limit of "
            f"{memory_limit} bytes a stage: in the one that needs least, stage {stage}, of layers "
            f"{parts[stage].start} to {parts[stage].stop - 1}, lacks {lacking} of {sizes[stage]} "
            f"bytes; raise the limit by {lacking}, use more stages, or a schedule with fewer "
            "micro-batches in flight",
            lacking,
        )

    def sent(stage: int, begin: int, end: int) -> float:
        # Sums of floats differ in their last digits depending on the split.
        if seconds_of(stage, begin, end) > slowest * (1 + 1e-12):
            return math.inf
        return layers[end - 1].sent_bytes if end < len(layers) else 0

    return _best(len(layers), stages, sent, lambda one, other: one + other)[1]


def smallest_parts(layers: Sequence[LayerCost], stages: int) -> tuple[range, ...]:
    """The split whose largest stage keeps the fewest bytes, with one micro-batch in flight.

    Raises UserError if there are fewer layers than stages.
    """
    _check(layers, stages)
    return _best(len(layers), stages, _bytes_of(layers, [1] * stages), max)[1]


def _check(layers: Sequence[LayerCost], stages: int) -> None:
    if not 1 <= stages <= len(layers):
        raise UserError(
            f"{len(layers)} layers cannot be split into {stages} stages: each stage needs at least "
            "one; use fewer stages, or a model with more layers"
        )


def _bytes_of(
    layers: Sequence[LayerCost], in_flight: Sequence[int]
) -> Callable[[int, int, int], int]:
    """The function of (stage, begin, end) to the bytes that a stage of these layers keeps,
    with so many micro-batches in flight at each stage."""
    base = _sums(layer.base_bytes for layer in layers)
    saved = _sums(layer.saved_bytes for layer in layers)

    def bytes_of(stage: int, begin: int, end: int) -> int:
        return base[end] - base[begin] + in_flight[stage] * (saved[end] - saved[begin])

    return bytes_of


def _best(
    layers: int,
    stages: int,
    cost: Callable[[int, int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, tuple[range, ...]]:
    """The split whose stage costs, combined by ``join``, are least, after that cost."""
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


def _sums(values: Iterable[Cost]) -> list[Cost]:
    return list(itertools.accumulate(values, initial=0))
