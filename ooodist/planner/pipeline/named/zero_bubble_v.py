"""The heuristic of Zero Bubble for measured costs, with two stages per rank in a V.

Qi, Wan, Amar, Lin, "Pipeline parallelism with controllable memory" (NeurIPS 2024), section 3.3: a
greedy search for ZB-V where F, I and W take different times. A round gives each rank one I and one
F; lower case is the upper half of the V, and W fills the gaps::

    rank 0   F0  F1  F2  .   .   f0  i0  F3  w0  f1  ...
    rank 1   .   F0  F1  .   f0  F2  i0  f1  w0  ...
    rank 2   .   .   F0  f0  F1  f1  i0  I0  ...
             |------ warm-up ------|
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from ooodist.planner.pipeline.actions import Kind, Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.named.greedy import Making
from ooodist.planner.pipeline.named.schedules import v_shape


def automatic(ranks: int, microbatches: int, costs: PipelineCosts) -> Iterator[Schedule]:
    """Yields the schedules of all combinations of choices; some may not fit into memory.

    Each is made again with the idle time of the last one allowed, as long as that shortens it.

    Args:
        ranks: the number of ranks; rank i has the stages i and 2 ranks - 1 - i.
        microbatches: the number of micro-batches in a step.
        costs: the costs of the stages.

    Raises:
        UserError: there is no stage or no micro-batch.
    """
    for fills in itertools.product((True, False), repeat=2):
        idle, most = [0.0] * ranks, math.inf
        while True:
            making = _TwoStages(ranks, microbatches, costs, fills, [max(idle) - x for x in idle])
            yield making.schedule("zb_v_auto")
            if max(making.idle) >= most:
                break
            idle, most = making.idle, max(making.idle)


class _TwoStages(Making):
    """Makes the schedule.

    Args:
        ranks, microbatches, costs: as those of :func:`automatic`.
        fills: whether a gap shorter than W, before F and before the I of a rank's last stage, is
            filled with W where the rank would otherwise be idle for longer than any other.
        least_idle: seconds for which each rank may be idle in any case.
    """

    def __init__(
        self,
        ranks: int,
        microbatches: int,
        costs: PipelineCosts,
        fills: tuple[bool, ...],
        least_idle: Sequence[float],
    ) -> None:
        super().__init__(v_shape(ranks), microbatches, costs, least_idle)
        self._ranks, (self._fills_forward, self._fills_backward) = ranks, fills
        self._warm_up()
        while not all(self.done[s, Kind.I] == microbatches for s in range(2 * ranks)):
            self._round()

    def _up(self, rank: int) -> int:
        """The rank's stage on the way back; the other one has the rank's number."""
        return 2 * self._ranks - 1 - rank

    def _warm_up(self) -> None:
        """Appends the F that precede the first I."""
        for rank in range(self._ranks):
            self.append(rank, Kind.F)
        for rank in reversed(range(self._ranks)):
            if rank + 1 < self._ranks:
                self._wait_for_first(rank)
            self.append(self._up(rank), Kind.F)
        is_up = False
        for before, rank in itertools.pairwise(range(self._ranks)):
            left = 2  # turns, until no F is ready
            while left and (
                self._forwards(rank) < self._forwards(before)
                or self.done[self._up(rank), Kind.F]
                <= self.done[self._up(before), Kind.F]
                < self._microbatches
            ):
                ranks = range(rank, self._ranks)
                stages = [self._up(other) for other in reversed(ranks)] if is_up else ranks
                ready = [stage for stage in stages if self._append_ready(stage)]
                left = 2 if ready else left - 1
                is_up = not is_up

    def _append_ready(self, stage: int) -> bool:
        """Appends the stage's next F if it is ready; returns whether it was."""
        is_ready = self.is_ready(stage, Kind.F)
        if is_ready:
            self.append(stage, Kind.F)
        return is_ready

    def _wait_for_first(self, rank: int) -> None:
        """Appends further F to the ranks up to this one, until its first one of the way back."""
        down, up = (self._costs.stages[stage] for stage in (rank, self._up(rank)))
        ahead = (rank + 1) * (sum(down.in_flight_bytes[:2]) + sum(up.in_flight_bytes[:2]))
        while (
            self.fits(rank, ahead)
            and self.now[rank] + down.forward <= self.arrival(self._up(rank), Kind.F)
            and self.done[rank, Kind.F] < self._microbatches
        ):
            for other in range(rank + 1):
                self.append(other, Kind.F)

    def _forwards(self, rank: int) -> int:
        return self.done[rank, Kind.F] + self.done[self._up(rank), Kind.F]

    def _round(self) -> None:
        """Appends one I, then at most one F, to each rank."""
        stages = [self._next_backward(rank) for rank in range(self._ranks)]
        down = [stage for rank, stage in enumerate(stages) if stage == rank]
        up = [stage for rank, stage in enumerate(stages) if stage != rank]
        has_backward = False
        for stage in (*reversed(down), *up):
            if self.is_ready(stage, Kind.I):
                self.make_room(self._rank_of[stage], self._costs.stages[stage].gradient_bytes)
                if_idle = self._fills_backward or stage < self._ranks
                self.fill(stage, Kind.I, if_idle=if_idle)
                self.append(stage, Kind.I)
                has_backward = True
        for rank in range(self._ranks):
            ready = [s for s in (self._up(rank), rank) if self.is_ready(s, Kind.F)]
            for stage in ready[:1]:
                needed = sum(self._costs.stages[stage].saved_bytes(Kind.F))
                self.make_room(rank, needed)
                if self.fits(rank, needed) or not has_backward:
                    self.fill(stage, Kind.F, if_idle=self._fills_forward)
                    self.append(stage, Kind.F)

    def _next_backward(self, rank: int) -> int:
        """The stage whose I is next: the rank's first one, if that will be ready in this round."""
        up = self._up(rank)
        done, behind = self.done[rank, Kind.I], self.done[up, Kind.I]
        has_all = behind == self._microbatches
        return rank if done < behind and (has_all or self.is_ready(rank, Kind.I)) else up
