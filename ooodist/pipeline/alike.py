"""Which schedules of the same stages compute the same numbers, bit by bit.

Sums of floats depend on their order: gradients are added up as W after W comes, and what F changes
(moving averages, random states) it changes micro-batch after micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ooodist.pipeline.stages import Stage
from ooodist.planner.pipeline.actions import (
    BACKWARD,
    FORWARD,
    WEIGHT_GRADIENT,
    Schedule,
    without_transfers,
)


def stages_together(stages: Sequence[Stage], rank_of: Sequence[int]) -> list[tuple[int, ...]]:
    """The stages in groups: those of a rank are one if two of them share a variable, and else each
    is by itself. Ranks have sums, and states, of their own.

    Args:
        stages: all of the model.
        rank_of: the rank of each.
    """
    groups: list[tuple[int, ...]] = []
    for rank in sorted(set(rank_of)):
        own = [stage for stage in stages if rank_of[stage.number] == rank]
        variables = [{id(variable) for variable in stage.model.variables} for stage in own]
        numbers = tuple(stage.number for stage in own)
        if any(one & other for one, other in itertools.combinations(variables, 2)):
            groups.append(numbers)
        else:
            groups.extend((number,) for number in numbers)
    return groups


def computes_alike(one: Schedule, other: Schedule, together: Sequence[tuple[int, ...]]) -> bool:
    """Whether both do the F, and the W, of each such group of stages in the same order."""
    return all(
        _order(one, group, kinds) == _order(other, group, kinds)
        for group in together
        for kinds in ((FORWARD,), (WEIGHT_GRADIENT, BACKWARD))
    )


def _order(schedule: Schedule, group: Sequence[int], kinds: Sequence[str]) -> list[tuple[int, int]]:
    return [
        (action.stage, action.microbatch)
        for action in without_transfers(schedule).actions[schedule.rank_of[group[0]]]
        if action.stage in group and action.kind in kinds
    ]
