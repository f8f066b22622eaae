"""Decides which schedules of the same stages compute the same numbers, bit for bit.

Floating-point sums depend on their order: gradients are added in the order of the Ws, and what F
changes (moving averages, random states) changes micro-batch after micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ooodist.pipeline.stages import Stage
from ooodist.planner.pipeline.actions import Kind, Schedule, without_transfers


def order_dependent_stages(
    stages: Sequence[Stage], rank_of: Sequence[int]
) -> list[tuple[int, ...]]:
    """Groups the stages whose sums or states depend on each other's order.

    The stages of a rank are one group if two of them share a variable; otherwise each is its own.

    Args:
        stages: all stages of the model.
        rank_of: the rank of each.
    """
    found: list[tuple[int, ...]] = []
    for rank in sorted(set(rank_of)):
        own = [stage for stage in stages if rank_of[stage.number] == rank]
        variables = [{id(variable) for variable in stage.model.variables} for stage in own]
        numbers = tuple(stage.number for stage in own)
        if any(one & other for one, other in itertools.combinations(variables, 2)):
            found.append(numbers)
        else:
            found.extend((number,) for number in numbers)
    return found


def computes_alike(one: Schedule, other: Schedule, groups: Sequence[tuple[int, ...]]) -> bool:
    """Whether both run the Fs, and the Ws, of each group of stages in the same order."""
    return all(
        _order(one, group, kinds) == _order(other, group, kinds)
        for group in groups
        for kinds in ((Kind.F,), (Kind.W, Kind.B))
    )


def _order(schedule: Schedule, group: Sequence[int], kinds: Sequence[str]) -> list[tuple[int, int]]:
    return [
        (action.stage, action.microbatch)
        for action in without_transfers(schedule).actions[schedule.rank_of[group[0]]]
        if action.stage in group and action.kind in kinds
    ]
