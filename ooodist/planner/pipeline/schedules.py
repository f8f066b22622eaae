"""Pipeline schedules that have a name, each for any number of ranks and micro-batches.

With equal stages, no time for transfers, p ranks and m micro-batches (F, I and W in seconds):

=============== ==================== ============================ ==================
schedule        stages               makespan                     in flight, at most
=============== ==================== ============================ ==================
gpipe           any a rank           (m + p - 1)(F + I + W)       m
1f1b            one a rank           (m + p - 1)(F + I + W)       p
interleaved     v a rank             m(F+I+W) + (p-1)(F+I+W)/v    more
zb_h1           one a rank           m(F+I+W) + (p-1)(F+I-W)      p
zb_h2           one a rank           as zb_h1; span m(F+I+W)      2p - 1
                                     + (p-1)(F+I-2W)
zb_v            two a rank           span m(F+I+W) at F = I = W   p
=============== ==================== ============================ ==================

"In flight" counts micro-batches of a rank whose W is not done, in units of a whole rank's share of
the model. A span is from a rank's own first action to its last.

fast_forward, modulo and push follow the costs; with 4 ranks, 8 layers and F = I = W = 1 a layer the
makespans for 1, 4 and 8 micro-batches are 18, 30, 54 and 17, 27, 51, where those of gpipe are 24,
42, 66.

Sources: fast-forward, modulo and push (Oh et al., EuroSys'22), GPipe (Huang et al. 2019), 1F1B
(PipeDream, Narayanan et al. 2019), interleaved (Megatron-LM, Narayanan et al. 2021), ZB-H1, ZB-H2
(Qi et al. 2023), ZB-V (Qi et al. 2024).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from ooodist.planner.pipeline.actions import (
    BACKWARD,
    COMPUTE_KINDS,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    check_size,
)
from ooodist.planner.pipeline.costs import PipelineCosts, equal_stages
from ooodist.planner.pipeline.list_scheduling import Rule, list_schedule


def gpipe(ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """All forward passes, then all backward passes."""

    def actions(rank: int) -> Iterator[Action]:
        stages = range(rank, ranks * chunks, ranks)
        for kind, those in ((FORWARD, stages), (BACKWARD, reversed(stages))):
            for stage in those:
                for microbatch in range(microbatches):
                    yield Action(stage, kind, microbatch)

    return _schedule("gpipe", _round_robin(ranks, chunks), microbatches, actions)


def one_forward_one_backward(ranks: int, microbatches: int) -> Schedule:
    """After p - rank forward passes, a backward and a forward pass in turn (1F1B)."""
    return _schedule(
        "1f1b",
        _round_robin(ranks, 1),
        microbatches,
        lambda rank: _in_turn(
            [Action(rank, FORWARD, number) for number in range(microbatches)],
            [[Action(rank, BACKWARD, number)] for number in range(microbatches)],
            ranks - rank,
        ),
    )


def interleaved(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B with several stages a rank: p micro-batches go through all of them, then the next p."""
    # Groups of less than p micro-batches come back to a rank earlier, so that one more forward pass
    # before each backward pass is all that can be run ahead from rank to rank; more would deadlock.
    groups = _even_groups(microbatches, ranks)
    ahead = 2 if len(groups) == 1 or all(len(group) == ranks for group in groups) else 1

    def actions(rank: int) -> Iterator[Action]:
        order = [(chunk, one) for group in groups for chunk in range(chunks) for one in group]
        back = [
            (chunk, one) for group in groups for chunk in reversed(range(chunks)) for one in group
        ]
        return _in_turn(
            [Action(chunk * ranks + rank, FORWARD, one) for chunk, one in order],
            [[Action(chunk * ranks + rank, BACKWARD, one)] for chunk, one in back],
            (chunks - 1) * ranks + ahead * (ranks - 1 - rank) + 1,
        )

    return _schedule("interleaved", _round_robin(ranks, chunks), microbatches, actions)


def zero_bubble_h1(ranks: int, microbatches: int) -> Schedule:
    """1F1B in which a rank's W comes as many micro-batches after its I as its number says."""
    return _schedule(
        "zb_h1",
        _round_robin(ranks, 1),
        microbatches,
        lambda rank: _delayed(rank, microbatches, ranks - rank, rank),
    )


def zero_bubble_h2(ranks: int, microbatches: int) -> Schedule:
    """ZB-H1 with nearly twice as many forward passes ahead, and W later by as many."""
    return _schedule(
        "zb_h2",
        _round_robin(ranks, 1),
        microbatches,
        lambda rank: _delayed(rank, microbatches, 2 * (ranks - rank) - 1, 2 * rank),
    )


def zero_bubble_v(ranks: int, microbatches: int) -> Schedule:
    """Two stages a rank in the shape of a V: the last rank has the middle, the first both ends.

    ::

        rank 0   stage 0       7
        rank 1    stage 1     6
        rank 2     stage 2   5
        rank 3      stage 3 4

    So rank 0 gets the output of the last stage from itself, and begins the backward pass. It is
    made for at least 2 p - 1 micro-batches, of which those that there are not are left out.
    """
    down_to_up = 2 * ranks - 1

    def actions(rank: int) -> Iterator[Action]:
        down, up = rank, down_to_up - rank
        done = dict.fromkeys(((stage, kind) for stage in (down, up) for kind in COMPUTE_KINDS), 0)

        def next_of(stage: int, *kinds: str) -> Iterator[Action]:
            for kind in kinds:
                yield Action(stage, kind, done[stage, kind])
                done[stage, kind] += 1

        split = INPUT_GRADIENT, WEIGHT_GRADIENT
        for _ in range(2 * (ranks - rank) - 1):
            yield from next_of(down, FORWARD)
        for _ in range(rank):
            yield from next_of(up, FORWARD)
            yield from next_of(down, FORWARD)
        for _ in range(ranks - rank):
            yield from next_of(up, FORWARD, *split)
        count = max(microbatches, down_to_up)
        while done[up, FORWARD] < count:
            if done[down, FORWARD] < count:
                yield from next_of(down, FORWARD)
            yield from next_of(down, *split)
            yield from next_of(up, FORWARD, *split)
        for _ in range(rank):
            yield from next_of(down, INPUT_GRADIENT)
            yield from next_of(up, INPUT_GRADIENT)
        for _ in range(ranks - rank):
            yield from next_of(down, *split)
        for stage in (up, down):
            while done[stage, WEIGHT_GRADIENT] < count:
                yield from next_of(stage, WEIGHT_GRADIENT)

    rank_of = tuple(min(stage, down_to_up - stage) for stage in range(2 * ranks))
    return _schedule(
        "zb_v",
        rank_of,
        microbatches,
        lambda rank: (action for action in actions(rank) if action.microbatch < microbatches),
    )


def fast_forward(ranks: int, microbatches: int, costs: PipelineCosts | None = None) -> Schedule:
    """Each rank does I as soon as it can, then F, and W while it would wait.

    Args:
        ranks: with one stage each.
        microbatches: in a step.
        costs: of the stages, which the order depends on; None: all equal.
    """
    return modulo(ranks, microbatches, 1, costs, name="fast_forward")


def modulo(
    ranks: int,
    microbatches: int,
    chunks: int = 2,
    costs: PipelineCosts | None = None,
    *,
    entering: int | None = None,
    name: str = "modulo",
) -> Schedule:
    """Fast-forward with stages dealt out to the ranks in turn.

    Args:
        ranks: of the pipeline.
        microbatches: in a step.
        chunks: stages of a rank.
        costs: of the stages, which the order depends on; None: all equal.
        entering: at most so many micro-batches in flight; a further one begins after an earlier
            one's W.
        name: of the schedule.
    """
    costs = costs or equal_stages(ranks * chunks)
    rule = Rule(entering=entering)
    return list_schedule(name, _round_robin(ranks, chunks), microbatches, costs, rule)


def push(
    ranks: int, microbatches: int, chunks: int = 2, costs: PipelineCosts | None = None
) -> Schedule:
    """Modulo with at most as many micro-batches in flight as there are ranks."""
    return modulo(ranks, microbatches, chunks, costs, entering=ranks, name="push")


def _delayed(rank: int, microbatches: int, ahead: int, delay: int) -> Iterator[Action]:
    """F as in 1F1B with so many ahead; each W so many micro-batches after its I."""
    backward = []
    for number in range(microbatches):
        group = [Action(rank, INPUT_GRADIENT, number)]
        if number >= delay:
            group.append(Action(rank, WEIGHT_GRADIENT, number - delay))
        backward.append(group)
    left = range(max(0, microbatches - delay), microbatches)
    yield from _in_turn(
        [Action(rank, FORWARD, number) for number in range(microbatches)], backward, ahead
    )
    yield from (Action(rank, WEIGHT_GRADIENT, number) for number in left)


def _in_turn(
    forward: Sequence[Action], backward: Sequence[Sequence[Action]], ahead: int
) -> Iterator[Action]:
    """So many forward actions, then a backward group and a forward action in turn."""
    yield from forward[:ahead]
    for number, group in enumerate(backward):
        yield from group
        yield from forward[ahead + number : ahead + number + 1]


def _even_groups(count: int, most: int) -> list[range]:
    """The numbers below ``count`` in groups of at most ``most``, of nearly equal sizes."""
    number = max(1, -(-count // max(1, most)))
    ends = [count * index // number for index in range(number + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


def _round_robin(ranks: int, chunks: int) -> tuple[int, ...]:
    return tuple(stage % ranks for stage in range(ranks * chunks))


def _schedule(
    name: str,
    rank_of: tuple[int, ...],
    microbatches: int,
    actions: Callable[[int], Iterator[Action]],
) -> Schedule:
    check_size(len(rank_of), microbatches)
    ranks = max(rank_of, default=-1) + 1
    return Schedule(name, rank_of, microbatches, tuple(tuple(actions(r)) for r in range(ranks)))
