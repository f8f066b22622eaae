"""The named pipeline schedules, each for any number of ranks and micro-batches.

With equal stages, free transfers, p ranks and m micro-batches (F, I and W in seconds):

=============== ==================== ============================ ==================
schedule        stages per rank      makespan                     in flight, at most
=============== ==================== ============================ ==================
gpipe           any number           (m + p - 1)(F + I + W)       m
1f1b            one                  (m + p - 1)(F + I + W)       p
interleaved     v                    m(F+I+W) + (p-1)(F+I+W)/v    more
zb_h1           one                  m(F+I+W) + (p-1)(F+I-W)      p
zb_h2           one                  as zb_h1; span m(F+I+W)      2p - 1
                                     + (p-1)(F+I-2W)
zb_v            two                  span m(F+I+W) at F = I = W   p
=============== ==================== ============================ ==================

"In flight" counts a rank's micro-batches whose W is not done, in units of a whole rank's share of
the model. A span lasts from a rank's own first action to its last.

fast_forward, modulo and push depend on the costs; with 4 ranks, 8 layers and F = I = W = 1 per
layer, the makespans for 1, 4 and 8 micro-batches are 18, 30, 54 (fast_forward) and 17, 27, 51
(modulo); those of gpipe are 24, 42, 66.

Sources: fast-forward, modulo and push (Oh et al., EuroSys'22), GPipe (Huang et al. 2019), 1F1B
(PipeDream, Narayanan et al. 2019), interleaved (Megatron-LM, Narayanan et al. 2021), ZB-H1, ZB-H2
(Qi et al. 2023), ZB-V (Qi et al. 2024).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
    """GPipe: all forward passes, then all backward passes."""

    def actions(rank: int) -> Iterator[Action]:
        stages = range(rank, ranks * chunks, ranks)
        for kind, those in ((FORWARD, stages), (BACKWARD, reversed(stages))):
            for stage in those:
                for microbatch in range(microbatches):
                    yield Action(stage, kind, microbatch)

    return _schedule("gpipe", round_robin(ranks, chunks), microbatches, actions)


def one_forward_one_backward(ranks: int, microbatches: int) -> Schedule:
    """1F1B: p - rank forward passes, then a backward and a forward pass in turn."""
    return _schedule(
        "1f1b",
        round_robin(ranks, 1),
        microbatches,
        lambda rank: _in_turn(
            [Action(rank, FORWARD, number) for number in range(microbatches)],
            [[Action(rank, BACKWARD, number)] for number in range(microbatches)],
            ranks - rank,
        ),
    )


def interleaved(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B: p micro-batches pass all stages of a rank, then the next p."""
    # Groups of fewer than p micro-batches return to a rank earlier, so from rank to rank only one
    # more forward pass can run ahead before each backward pass; two would deadlock.
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

    return _schedule("interleaved", round_robin(ranks, chunks), microbatches, actions)


def zero_bubble_h1(ranks: int, microbatches: int) -> Schedule:
    """ZB-H1: 1F1B in which rank r runs each W r micro-batches after its I."""
    return _schedule(
        "zb_h1",
        round_robin(ranks, 1),
        microbatches,
        lambda rank: _delayed(rank, microbatches, ranks - rank, rank),
    )


def zero_bubble_h2(ranks: int, microbatches: int) -> Schedule:
    """ZB-H2: ZB-H1 with nearly twice the forward passes ahead, and twice the delay of W."""
    return _schedule(
        "zb_h2",
        round_robin(ranks, 1),
        microbatches,
        lambda rank: _delayed(rank, microbatches, 2 * (ranks - rank) - 1, 2 * rank),
    )


def zero_bubble_v(ranks: int, microbatches: int) -> Schedule:
    """ZB-V: two stages per rank in a V; the last rank has the middle, the first both ends.

    ::

        rank 0   stage 0       7
        rank 1    stage 1     6
        rank 2     stage 2   5
        rank 3      stage 3 4

    So the last stage is on rank 0, which begins the backward pass. The order is built for at least
    2 p - 1 micro-batches; those beyond ``microbatches`` are then left out.
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

    return _schedule(
        "zb_v",
        v_shape(ranks),
        microbatches,
        lambda rank: (action for action in actions(rank) if action.microbatch < microbatches),
    )


def fast_forward(ranks: int, microbatches: int, costs: PipelineCosts | None = None) -> Schedule:
    """The fast-forward schedule: I as soon as possible, then F, and W instead of waiting.

    Args:
        ranks: the number of ranks, each with one stage.
        microbatches: the number of micro-batches in a step.
        costs: the costs of the stages, which determine the order; None: all equal.
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
    """The fast-forward schedule for stages placed on the ranks round-robin.

    Args:
        ranks: the number of ranks.
        microbatches: the number of micro-batches in a step.
        chunks: stages per rank.
        costs: the costs of the stages, which determine the order; None: all equal.
        entering: the most micro-batches in flight; another one begins only after an earlier one's
            W. None: no limit.
        name: the name of the schedule.
    """
    costs = costs or equal_stages(ranks * chunks)
    rule = Rule(entering=entering)
    return list_schedule(name, round_robin(ranks, chunks), microbatches, costs, rule)


def push(
    ranks: int, microbatches: int, chunks: int = 2, costs: PipelineCosts | None = None
) -> Schedule:
    """The modulo schedule with at most as many micro-batches in flight as ranks."""
    return modulo(ranks, microbatches, chunks, costs, entering=ranks, name="push")


def _delayed(rank: int, microbatches: int, ahead: int, delay: int) -> Iterator[Action]:
    """Yields 1F1B with ``ahead`` F first and each W ``delay`` micro-batches after its I."""
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
    """Yields ``ahead`` forward actions, then a backward group and a forward action in turn."""
    yield from forward[:ahead]
    for number, group in enumerate(backward):
        yield from group
        yield from forward[ahead + number : ahead + number + 1]


def _even_groups(count: int, most: int) -> list[range]:
    """The numbers below ``count`` in nearly equal groups of at most ``most``."""
    number = max(1, -(-count // max(1, most)))
    ends = [count * index // number for index in range(number + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


def round_robin(ranks: int, chunks: int) -> tuple[int, ...]:
    """The rank of each stage: 0 1 2 3 0 1 2 3 with 4 ranks and 2 chunks."""
    return tuple(stage % ranks for stage in range(ranks * chunks))


def v_shape(ranks: int) -> tuple[int, ...]:
    """The rank of each stage, two per rank: 0 1 2 3 3 2 1 0 with 4 ranks."""
    return (*range(ranks), *reversed(range(ranks)))


def _schedule(
    name: str,
    rank_of: tuple[int, ...],
    microbatches: int,
    actions: Callable[[int], Iterator[Action]],
) -> Schedule:
    check_size(len(rank_of), microbatches)
    ranks = max(rank_of, default=-1) + 1
    return Schedule(name, rank_of, microbatches, tuple(tuple(actions(r)) for r in range(ranks)))


@dataclass(frozen=True)
class Kind:
    """A named schedule: how it is made, and how many stages (chunks) a rank may have."""

    make: Callable[[int, int, int, PipelineCosts], Schedule]  # of ranks, micro-batches, chunks
    chunks: int  # the default
    other_chunks: bool = False  # whether another number is allowed
    is_v: bool = False  # whether stages are placed in the shape of a V, rather than round-robin

    def may_have(self, chunks: int) -> bool:
        """Whether a rank may have so many stages."""
        return self.other_chunks or chunks == self.chunks

    def rank_of(self, ranks: int, chunks: int) -> tuple[int, ...]:
        """The rank of each stage."""
        return v_shape(ranks) if self.is_v else round_robin(ranks, chunks)


KINDS = {
    "gpipe": Kind(lambda p, m, v, _: gpipe(p, m, v), 1, other_chunks=True),
    "1f1b": Kind(lambda p, m, v, _: one_forward_one_backward(p, m), 1),
    "interleaved": Kind(lambda p, m, v, _: interleaved(p, m, v), 2, other_chunks=True),
    "fast_forward": Kind(lambda p, m, v, costs: fast_forward(p, m, costs), 1),
    "modulo": Kind(modulo, 2, other_chunks=True),
    "push": Kind(push, 2, other_chunks=True),
    "zb_h1": Kind(lambda p, m, v, _: zero_bubble_h1(p, m), 1),
    "zb_h2": Kind(lambda p, m, v, _: zero_bubble_h2(p, m), 1),
    "zb_v": Kind(lambda p, m, v, _: zero_bubble_v(p, m), 2, is_v=True),
}
