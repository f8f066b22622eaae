"""Schedules that repeat a building block: the actions of one micro-batch, each in its time slot.

Each micro-batch follows the one before it after as many slots as a rank has actions for it. How far
apart a stage's F and W are determines how many micro-batches a rank keeps. V-Min with 3 ranks, and
the first micro-batch as an example::

    slot      0   1   2   3   4   5   6   7   8   9  10  11  12  13  14
    rank 0   0F0  .   .   .   .  5F0  .   .  5I0 5W0  .   .   .  0I0 0W0
    rank 1    .  1F0  .   .  4F0  .   .   .   .  4I0 4W0  .  1I0 1W0
    rank 2    .   .  2F0 3F0  .   .   .   .   .   .  3I0 2I0 3W0 2W0

Qi, Wan, Amar, Lin, "Pipeline parallelism with controllable memory" (NeurIPS 2024). There, too, the
first and the last micro-batches are moved into earlier gaps afterwards, as far as memory allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from ooodist.planner.pipeline.actions import Action, Kind, Schedule
from ooodist.planner.pipeline.costs import PipelineCosts, equal_stages
from ooodist.planner.pipeline.justify import justified
from ooodist.planner.pipeline.named.schedules import schedule_by_rank, v_shape
from ooodist.planner.pipeline.simulate import peak_bytes

MOST_MOVED = 60_000  # actions; of more, which would take seconds, the block is only repeated
SLOTS = 6  # of a rank for each micro-batch: F, I and W of two stages


def v_min(ranks: int, microbatches: int, costs: PipelineCosts | None = None) -> Schedule:
    """V-Min: about a third of the memory of 1F1B, and no bubble in between if F = I = W.

    Args:
        ranks: the number of ranks, each with two stages.
        microbatches: the number of micro-batches in a step.
        costs: the costs of the stages, which determine what is moved into which gap; None: all
            equal.
    """
    p, pause = ranks, 2 * (ranks % 3 == 0)
    return _in_v(
        "v_min",
        ranks,
        microbatches,
        costs,
        lambda rank: (rank, 2 * p - 1 - rank, 2 * p + pause + rank, 4 * p - 1 + pause - rank),
    )


def v_half(ranks: int, microbatches: int, costs: PipelineCosts | None = None) -> Schedule:
    """V-Half: about half the memory of 1F1B, and next to no bubble in between.

    The arguments are those of :func:`v_min`.
    """
    p, pause = ranks, 3 * (ranks % 2 == 0)
    return _in_v(
        "v_half",
        ranks,
        microbatches,
        costs,
        lambda rank: (
            *(2 * rank, 3 * p - 2 - rank),
            *(3 * p - 1 + pause + 2 * rank, 6 * p - 2 + pause - rank),
        ),
    )


def _in_v(
    name: str,
    ranks: int,
    microbatches: int,
    costs: PipelineCosts | None,
    block: Callable[[int], tuple[int, ...]],
) -> Schedule:
    """Repeats a block of two stages per rank in a V.

    Args:
        name: the name of the schedule.
        ranks: the number of ranks.
        microbatches: the number of micro-batches.
        costs: the costs of the stages; None: all equal.
        block: for a rank, the slots of F on its first and second stage, and I on its second and
            first one. W is in the slots that are free.
    """

    def actions(rank: int) -> list[Action]:
        stages = rank, 2 * ranks - 1 - rank
        kinds = zip(
            (*stages, *reversed(stages)),
            (Kind.F, Kind.F, Kind.I, Kind.I),
            block(rank),
            strict=True,
        )
        slots = {
            Action(stage, kind, number): slot + SLOTS * number
            for stage, kind, slot in kinds
            for number in range(microbatches)
        }
        taken = set(slots.values())
        free = (slot for slot in itertools.count() if slot not in taken)
        for action in sorted(slots, key=slots.__getitem__):
            if action.kind == Kind.I:
                after = slots[action]
                slots[action._replace(kind=Kind.W)] = next(s for s in free if s > after)
        return sorted(slots, key=slots.__getitem__)

    costs = costs or equal_stages(2 * ranks)
    repeated = schedule_by_rank(name, v_shape(ranks), microbatches, actions)
    if SLOTS * ranks * microbatches > MOST_MOVED:
        return repeated
    limit = max(peak_bytes(repeated, costs))
    return justified(repeated, replace(costs, memory_limit=limit))
