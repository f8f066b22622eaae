"""The registry of named pipeline schedules: what the name of a schedule stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.named import building_blocks, schedules, zero_bubble, zero_bubble_v
from ooodist.planner.pipeline.named.schedules import round_robin, v_shape
from ooodist.planner.pipeline.simulate import peak_bytes, step_seconds


@dataclass(frozen=True)
class Kind:
    """A named schedule: how it is made, and how many stages (chunks) a rank may have.

    Attributes:
        variants: (ranks, micro-batches, chunks, costs) -> the schedules of that name, which may not
            fit; more than one where a heuristic has choices that the costs alone do not determine.
        chunks: stages per rank by default.
        other_chunks: whether another number is allowed.
        is_v: whether stages are placed in the shape of a V, rather than round-robin.
    """

    variants: Callable[[int, int, int, PipelineCosts], Iterable[Schedule]]
    chunks: int
    other_chunks: bool = False
    is_v: bool = False

    def may_have(self, chunks: int) -> bool:
        """Whether a rank may have so many stages."""
        return self.other_chunks or chunks == self.chunks

    def rank_of(self, ranks: int, chunks: int) -> tuple[int, ...]:
        """The rank of each stage."""
        return v_shape(ranks) if self.is_v else round_robin(ranks, chunks)

    def make(self, ranks: int, microbatches: int, chunks: int, costs: PipelineCosts) -> Schedule:
        """The schedule; of several, the fastest of those that fit into the memory limit."""
        variants = list(self.variants(ranks, microbatches, chunks, costs))
        if len(variants) == 1:
            return variants[0]
        limit = costs.memory_limit

        def lacks(schedule: Schedule) -> bool:
            return limit is not None and max(peak_bytes(schedule, costs)) > limit

        return min(variants, key=lambda each: (lacks(each), step_seconds(each, costs)))


def _with_and_without_limit(
    make: Callable[[int, int, int, PipelineCosts], Schedule],
) -> Callable[[int, int, int, PipelineCosts], list[Schedule]]:
    """A list schedule made without the limit may fit as well, and be faster."""
    return lambda p, m, v, costs: [
        make(p, m, v, each) for each in dict.fromkeys((costs, replace(costs, memory_limit=None)))
    ]


KINDS = {
    "gpipe": Kind(lambda p, m, v, _: [schedules.gpipe(p, m, v)], 1, other_chunks=True),
    "1f1b": Kind(lambda p, m, v, _: [schedules.one_forward_one_backward(p, m)], 1),
    "interleaved": Kind(lambda p, m, v, _: [schedules.interleaved(p, m, v)], 2, other_chunks=True),
    "interleaved_zb": Kind(
        lambda p, m, v, _: [schedules.interleaved_zero_bubble(p, m, v)], 2, other_chunks=True
    ),
    "fast_forward": Kind(
        _with_and_without_limit(lambda p, m, v, costs: schedules.fast_forward(p, m, costs)), 1
    ),
    "modulo": Kind(_with_and_without_limit(schedules.modulo), 2, other_chunks=True),
    "push": Kind(_with_and_without_limit(schedules.push), 2, other_chunks=True),
    "zb_h1": Kind(lambda p, m, v, _: [schedules.zero_bubble_h1(p, m)], 1),
    "zb_h2": Kind(lambda p, m, v, _: [schedules.zero_bubble_h2(p, m)], 1),
    "zb_auto": Kind(lambda p, m, v, costs: zero_bubble.automatic(m, costs), 1),
    "zb_v": Kind(lambda p, m, v, _: [schedules.zero_bubble_v(p, m)], 2, is_v=True),
    "zb_v_auto": Kind(lambda p, m, v, costs: zero_bubble_v.automatic(p, m, costs), 2, is_v=True),
    "v_half": Kind(lambda p, m, v, costs: [building_blocks.v_half(p, m, costs)], 2, is_v=True),
    "v_min": Kind(lambda p, m, v, costs: [building_blocks.v_min(p, m, costs)], 2, is_v=True),
    "dual_pipe_v": Kind(lambda p, m, v, _: [schedules.dual_pipe_v(p, m)], 2, is_v=True),
}
