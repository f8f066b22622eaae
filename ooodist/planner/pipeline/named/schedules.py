"""Published pipeline schedules, each for any number of ranks and micro-batches.

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
dual_pipe_v     two                  more than zb_v               p + 1/2
=============== ==================== ============================ ==================

"In flight" counts a rank's micro-batches whose W is not done, in units of a whole rank's share of
the model. A span lasts from a rank's own first action to its last.

fast_forward, modulo and push depend on the costs; with 4 ranks, 8 layers and F = I = W = 1 per
layer, the makespans for 1, 4 and 8 micro-batches are 18, 30, 54 (fast_forward) and 17, 27, 51
(modulo); those of gpipe are 24, 42, 66.

interleaved_zb keeps less than interleaved, and has zb_h1's bubble divided by v.

Sources: fast-forward, modulo and push (Oh et al., EuroSys'22), GPipe (Huang et al. 2019), 1F1B
(PipeDream, Narayanan et al. 2019), interleaved (Megatron-LM, Narayanan et al. 2021), ZB-H1, ZB-H2
(Qi et al. 2023), ZB-V (Qi et al. 2024), interleaved_zb (PyTorch, ScheduleInterleavedZeroBubble),
DualPipeV (Li et al. 2025; PyTorch, ScheduleDualPipeV).
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from ooodist.planner.pipeline.actions import COMPUTE_KINDS, Action, Kind, Schedule, check_size
from ooodist.planner.pipeline.costs import PipelineCosts, equal_stages
from ooodist.planner.pipeline.list_scheduling import Rule, list_schedule


def gpipe(ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """GPipe: all forward passes, then all backward passes."""

    def actions(rank: int) -> Iterator[Action]:
        stages = range(rank, ranks * chunks, ranks)
        for kind, those in ((Kind.F, stages), (Kind.B, reversed(stages))):
            for stage in those:
                for microbatch in range(microbatches):
                    yield Action(stage, kind, microbatch)

    return schedule_by_rank("gpipe", round_robin(ranks, chunks), microbatches, actions)


def one_forward_one_backward(ranks: int, microbatches: int) -> Schedule:
    """1F1B: p - rank forward passes, then a backward and a forward pass in turn."""
    return schedule_by_rank(
        "1f1b",
        round_robin(ranks, 1),
        microbatches,
        lambda rank: _in_turn(
            [Action(rank, Kind.F, number) for number in range(microbatches)],
            [[Action(rank, Kind.B, number)] for number in range(microbatches)],
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
        forward, backward = (
            _looped(kind, rank, ranks, chunks, groups) for kind in (Kind.F, Kind.B)
        )
        ahead_here = (chunks - 1) * ranks + ahead * (ranks - 1 - rank) + 1
        return _in_turn(forward, [[action] for action in backward], ahead_here)

    return schedule_by_rank("interleaved", round_robin(ranks, chunks), microbatches, actions)


def interleaved_zero_bubble(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B with fewer forward passes ahead, in which rank r delays each W by r I's."""
    groups = _even_groups(microbatches, ranks)
    return schedule_by_rank(
        "interleaved_zb",
        round_robin(ranks, chunks),
        microbatches,
        lambda rank: _delayed(rank, ranks, groups, chunks * ranks - rank, rank, chunks),
    )


def zero_bubble_h1(ranks: int, microbatches: int) -> Schedule:
    """ZB-H1: 1F1B in which rank r runs each W r micro-batches after its I."""
    return schedule_by_rank(
        "zb_h1",
        round_robin(ranks, 1),
        microbatches,
        lambda rank: _delayed(rank, ranks, [range(microbatches)], ranks - rank, rank),
    )


def zero_bubble_h2(ranks: int, microbatches: int) -> Schedule:
    """ZB-H2: ZB-H1 with nearly twice the forward passes ahead, and twice the delay of W."""
    return schedule_by_rank(
        "zb_h2",
        round_robin(ranks, 1),
        microbatches,
        lambda rank: _delayed(rank, ranks, [range(microbatches)], 2 * (ranks - rank) - 1, 2 * rank),
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

        split = Kind.I, Kind.W
        for _ in range(2 * (ranks - rank) - 1):
            yield from next_of(down, Kind.F)
        for _ in range(rank):
            yield from next_of(up, Kind.F)
            yield from next_of(down, Kind.F)
        for _ in range(ranks - rank):
            yield from next_of(up, Kind.F, *split)
        count = max(microbatches, down_to_up)
        while done[up, Kind.F] < count:
            if done[down, Kind.F] < count:
                yield from next_of(down, Kind.F)
            yield from next_of(down, *split)
            yield from next_of(up, Kind.F, *split)
        for _ in range(rank):
            yield from next_of(down, Kind.I)
            yield from next_of(up, Kind.I)
        for _ in range(ranks - rank):
            yield from next_of(down, *split)
        for stage in (up, down):
            while done[stage, Kind.W] < count:
                yield from next_of(stage, Kind.W)

    return schedule_by_rank(
        "zb_v",
        v_shape(ranks),
        microbatches,
        lambda rank: (action for action in actions(rank) if action.microbatch < microbatches),
    )


def dual_pipe_v(ranks: int, microbatches: int) -> Schedule:
    """DualPipeV: as ZB-V, but in between with I and W as one, whose transfers overlap F.

    The order is built for at least 2 p micro-batches; those beyond ``microbatches`` are then left
    out.
    """
    count = max(microbatches, 2 * ranks)

    def actions(rank: int) -> Iterator[Action]:
        down, up, left = rank, 2 * ranks - 1 - rank, ranks - 1 - rank
        done: dict[tuple[int, bool], int] = defaultdict(int)
        weights: deque[Action] = deque()

        def next_of(stage: int, kind: str) -> Action:
            part = stage, kind == Kind.F
            action = Action(stage, kind, done[part])
            done[part] += 1
            if kind == Kind.I:
                weights.append(action._replace(kind=Kind.W))
            return action

        for _ in range(2 * left):
            yield next_of(down, Kind.F)
        for _ in range(rank + 1):
            yield next_of(down, Kind.F)
            yield next_of(up, Kind.F)
        for _ in range(left):
            yield next_of(up, Kind.I)
            yield weights.popleft()
            yield next_of(up, Kind.F)
        for _ in range(count - ranks - left):
            yield next_of(down, Kind.F)
            yield next_of(up, Kind.B)
            yield next_of(up, Kind.F)
            yield next_of(down, Kind.B)
        for _ in range(left):
            yield next_of(up, Kind.B)
            yield next_of(up, Kind.F)
            yield next_of(down, Kind.B)
        for number, stage in enumerate((up, down) * (rank + 1)):
            yield next_of(stage, Kind.B if number <= rank else Kind.I)
        for _ in range(left):
            yield weights.popleft()
            yield next_of(down, Kind.I)
        yield from weights

    return schedule_by_rank(
        "dual_pipe_v",
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


def _looped(kind: str, rank: int, ranks: int, chunks: int, groups: Sequence[range]) -> list[Action]:
    """The actions of a rank if each group of micro-batches passes all its stages in turn."""
    stages = range(rank, ranks * chunks, ranks)
    return [
        Action(stage, kind, number)
        for group in groups
        for stage in (stages if kind == Kind.F else reversed(stages))
        for number in group
    ]


def _delayed(
    rank: int, ranks: int, groups: Sequence[range], ahead: int, delay: int, chunks: int = 1
) -> Iterator[Action]:
    """Yields 1F1B with ``ahead`` F first and each W ``delay`` I's after its own."""
    forward, backward = (_looped(kind, rank, ranks, chunks, groups) for kind in (Kind.F, Kind.I))
    weights = [action._replace(kind=Kind.W) for action in backward]
    turns = [[action] for action in backward]
    for turn, weight in zip(turns[delay:], weights, strict=False):
        turn.append(weight)
    yield from _in_turn(forward, turns, ahead)
    yield from weights[max(0, len(weights) - delay) :]


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


def schedule_by_rank(
    name: str,
    rank_of: tuple[int, ...],
    microbatches: int,
    actions: Callable[[int], Iterable[Action]],
) -> Schedule:
    """The schedule in which each rank runs the actions that it is given by its number.

    Raises:
        UserError: there is no stage or no micro-batch.
    """
    check_size(len(rank_of), microbatches)
    ranks = max(rank_of, default=-1) + 1
    return Schedule(name, rank_of, microbatches, tuple(tuple(actions(r)) for r in range(ranks)))
