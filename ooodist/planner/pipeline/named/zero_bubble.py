"""The heuristic of Zero Bubble for measured costs, with one stage per rank.

Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), section 3.1, "The heuristic algorithm".
A round gives each rank one I, and at most one F before it. W fills the gaps::

    rank 0   F0  F1  F2  .   .   .   I0  F3  W0  I1  W1  ...
    rank 1   .   F0  F1  .   I0  F2  W0  I1  F3  W1  ...
    rank 2   .   .   F0  I0  F1  W0  I1  F2  W1  ...
             |---- warm-up ------|
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ooodist.planner.pipeline.actions import Kind, Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.named.greedy import Making


@dataclass(frozen=True)
class Choices:
    """The choices that the costs alone do not determine.

    Attributes:
        late_first_backward: in the warm-up, a rank runs one more F even if that delays its first
            I; if False, only an F that does not.
        backward_first: a rank skips the F of a round if it would delay I, unless skipping it would
            leave the rank idle for longer than any other has been.
        fill_all: a gap shorter than W is always filled with W; if False, only if the rank would
            otherwise have been idle for longer than any other.
    """

    late_first_backward: bool
    backward_first: bool
    fill_all: bool


def automatic(microbatches: int, costs: PipelineCosts) -> Iterator[Schedule]:
    """Yields the schedule for each combination of choices.

    They stay within the memory limit if one micro-batch fits into it.

    Args:
        microbatches: the number of micro-batches in a step.
        costs: the costs of the stages; stage i is on rank i.

    Raises:
        UserError: there is no stage or no micro-batch.
    """
    for choices in itertools.product((True, False), repeat=3):
        yield _OneStage(microbatches, costs, Choices(*choices)).schedule("zb_auto")


class _OneStage(Making):
    """Makes the schedule; stage i is on rank i."""

    def __init__(self, microbatches: int, costs: PipelineCosts, choices: Choices) -> None:
        self._ranks = len(costs.stages)
        super().__init__(tuple(range(self._ranks)), microbatches, costs)
        self._choices = choices
        self._warm_up()
        for _ in range(1, microbatches):
            self._round()

    def _warm_up(self) -> None:
        """Appends all F that precede the first I, and the first I, to each rank."""
        for rank in range(self._ranks):
            self.append(rank, Kind.F)
        more = [0] * self._ranks
        arrival = 0.0  # of the input of the first I, as far as is known
        for rank in reversed(range(self._ranks)):
            stage, now, saved = self._costs.stages[rank], self.now[rank], 0
            while rank + 1 < self._ranks and 1 + more[rank] < self._microbatches:
                late = self._choices.late_first_backward
                is_in_time = now < arrival if late else now + stage.forward <= arrival
                if not is_in_time or not self._fits_forward(rank, saved):
                    break
                now += stage.forward
                saved += stage.input_bytes + stage.weight_bytes
                more[rank] += 1
            arrival = max(now, arrival) + stage.input_gradient + stage.send_back_seconds
        for before, rank in itertools.pairwise(range(self._ranks)):
            # One fewer than the rank before, so that no rank waits for an F between two I.
            has_all = 1 + more[rank] == self._microbatches
            more[rank] = min(more[rank], more[before] if has_all else max(0, more[before] - 1))
        for rank, number in enumerate(more):
            for _ in range(number):
                self.append(rank, Kind.F)
        for rank in reversed(range(self._ranks)):
            self.append(rank, Kind.I)

    def _round(self) -> None:
        """Appends another F where it is due, then another I, to each rank."""
        # If a rank skips its F, the ranks before it skip theirs too.
        due = itertools.takewhile(self._wants_forward, reversed(range(self._ranks)))
        for rank in reversed(list(due)):
            self.make_room(rank, self._forward_bytes(rank))
            self.fill(rank, Kind.F, always=self._choices.fill_all)
            self.append(rank, Kind.F)
        for rank in reversed(range(self._ranks)):
            self.make_room(rank, self._costs.stages[rank].gradient_bytes)
            self.fill(rank, Kind.I, always=self._choices.fill_all)
            if rank == 0 and self.done[0, Kind.F] == self._microbatches:
                while self.weights[0]:  # nobody waits for rank 0's I
                    self.append_weight(0)
            self.append(rank, Kind.I)

    def _wants_forward(self, rank: int) -> bool:
        """Whether the F of this round is due before the I."""
        begun = self.done[rank, Kind.F]
        if begun == self._microbatches:
            return False
        following = rank + 1
        if not self._choices.backward_first or following == self._ranks:
            return True
        if begun < self.done[following, Kind.F] + 2:
            return True
        stage, other = self._costs.stages[rank], self._costs.stages[following]
        arrival = (
            self.now[following] + other.forward + other.input_gradient + other.send_back_seconds
        )
        if self.now[rank] >= arrival:
            return False
        end, saved = self.now[rank] + stage.forward, 0
        for _ in self.weights[rank]:
            if self._fits_forward(rank, saved):
                break
            end += stage.weight_gradient
            saved -= stage.weight_bytes + stage.gradient_bytes
        return end <= arrival or self.is_too_idle(rank, arrival)

    def _fits_forward(self, rank: int, more: int) -> bool:
        """Whether an F and its I fit if the rank keeps so many more bytes."""
        return self.fits(rank, more + self._forward_bytes(rank))

    def _forward_bytes(self, rank: int) -> int:
        """The bytes of an F and its I; by then there may be no W left to free memory."""
        return sum(self._costs.stages[rank].in_flight_bytes)
