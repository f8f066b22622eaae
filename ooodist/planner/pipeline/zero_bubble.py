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
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ooodist.planner.pipeline.actions import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    check_size,
)
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.dependencies import SPLIT_KINDS, receiver_of
from ooodist.planner.pipeline.simulate import Links


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
    check_size(len(costs.stages), microbatches)
    for choices in itertools.product((True, False), repeat=3):
        yield _Making(microbatches, costs, Choices(*choices)).schedule()


class _Making:
    """Builds a schedule by appending actions to ranks, and tracks when each of them ends."""

    def __init__(self, microbatches: int, costs: PipelineCosts, choices: Choices) -> None:
        self._microbatches, self._costs, self._choices = microbatches, costs, choices
        self._ranks = len(costs.stages)
        self._links = Links(tuple(range(self._ranks)))
        self._receivers = {
            (rank, kind): receiver_of(rank, kind, self._ranks)
            for rank in range(self._ranks)
            for kind in SPLIT_KINDS
        }
        self._actions: list[list[Action]] = [[] for _ in range(self._ranks)]
        self._now = [0.0] * self._ranks
        self._idle = [0.0] * self._ranks  # since the first F
        self._most_idle = 0.0
        self._saved = [stage.base_bytes for stage in costs.stages]
        self._done: dict[tuple[int, str], int] = defaultdict(int)  # by rank and kind
        # When the inputs of a rank's F and I arrive from another rank, for each micro-batch.
        self._arrivals: dict[tuple[int, str], list[float]] = defaultdict(list)

    def schedule(self) -> Schedule:
        self._warm_up()
        for _ in range(1, self._microbatches):
            self._round()
        for rank in range(self._ranks):
            while self._done[rank, WEIGHT_GRADIENT] < self._microbatches:
                self._append(rank, WEIGHT_GRADIENT)
        actions = tuple(map(tuple, self._actions))
        return Schedule("zb_auto", tuple(range(self._ranks)), self._microbatches, actions)

    def _warm_up(self) -> None:
        """Appends all F that precede the first I, and the first I, to each rank."""
        for rank in range(self._ranks):
            self._append(rank, FORWARD)
        more = [0] * self._ranks
        arrival = 0.0  # of the input of the first I, as far as is known
        for rank in reversed(range(self._ranks)):
            stage, now, saved = self._costs.stages[rank], self._now[rank], self._saved[rank]
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
                self._append(rank, FORWARD)
        for rank in reversed(range(self._ranks)):
            self._append(rank, INPUT_GRADIENT)

    def _round(self) -> None:
        """Appends another F where it is due, then another I, to each rank."""
        # If a rank skips its F, the ranks before it skip theirs too.
        due = itertools.takewhile(self._wants_forward, reversed(range(self._ranks)))
        for rank in reversed(list(due)):
            while not self._fits_forward(rank, self._saved[rank]) and self._weights_left(rank):
                self._append(rank, WEIGHT_GRADIENT)
            self._fill(rank, FORWARD)
            self._append(rank, FORWARD)
        for rank in reversed(range(self._ranks)):
            while not self._fits_backward(rank) and self._weights_left(rank):
                self._append(rank, WEIGHT_GRADIENT)
            self._fill(rank, INPUT_GRADIENT)
            if rank == 0 and self._done[0, FORWARD] == self._microbatches:
                while self._weights_left(0):  # nobody waits for rank 0's I
                    self._append(0, WEIGHT_GRADIENT)
            self._append(rank, INPUT_GRADIENT)

    def _wants_forward(self, rank: int) -> bool:
        """Whether the F of this round is due before the I."""
        begun = self._done[rank, FORWARD]
        if begun == self._microbatches:
            return False
        following = rank + 1
        if not self._choices.backward_first or following == self._ranks:
            return True
        if begun < self._done[following, FORWARD] + 2:
            return True
        stage, other = self._costs.stages[rank], self._costs.stages[following]
        arrival = (
            self._now[following] + other.forward + other.input_gradient + other.send_back_seconds
        )
        if self._now[rank] >= arrival:
            return False
        end, saved = self._now[rank] + stage.forward, self._saved[rank]
        for _ in range(self._weights_left(rank)):
            if self._fits_forward(rank, saved):
                break
            end += stage.weight_gradient
            saved -= stage.weight_bytes + stage.gradient_bytes
        return end <= arrival or self._is_too_idle(rank, arrival)

    def _fill(self, rank: int, kind: str) -> None:
        """Appends W until the input of the next action of this kind arrives."""
        if rank == (0 if kind == FORWARD else self._ranks - 1):
            return
        arrival = self._arrivals[rank, kind][self._done[rank, kind]]
        seconds = self._costs.stages[rank].weight_gradient
        while self._weights_left(rank) and self._now[rank] + seconds <= arrival:
            self._append(rank, WEIGHT_GRADIENT)
        if (
            self._weights_left(rank)
            and self._now[rank] < arrival
            and (self._choices.fill_all or self._is_too_idle(rank, arrival))
        ):
            self._append(rank, WEIGHT_GRADIENT)

    def _append(self, rank: int, kind: str) -> None:
        microbatch, stage = self._done[rank, kind], self._costs.stages[rank]
        arrivals = self._arrivals[rank, kind]
        start = max(self._now[rank], arrivals[microbatch]) if arrivals else self._now[rank]
        if self._done[rank, FORWARD]:
            self._idle[rank] += start - self._now[rank]
            self._most_idle = max(self._most_idle, self._idle[rank])
        end = self._now[rank] = start + stage.seconds(kind)
        self._saved[rank] += sum(stage.saved_bytes(kind))
        self._actions[rank].append(Action(rank, kind, microbatch))
        self._done[rank, kind] += 1
        other = self._receivers[rank, kind]
        if other is not None:
            at = self._links.arrival(rank, other, end, stage.transfer_seconds(kind))
            self._arrivals[other, kind].append(at)

    def _is_too_idle(self, rank: int, until: float) -> bool:
        """Whether a rank idle until then would have waited longer than any other has."""
        return self._idle[rank] + until - self._now[rank] > self._most_idle

    def _weights_left(self, rank: int) -> int:
        """How many W the rank could run now."""
        return self._done[rank, INPUT_GRADIENT] - self._done[rank, WEIGHT_GRADIENT]

    def _fits_forward(self, rank: int, saved: int) -> bool:
        """Whether an F and its I fit; by then there may be no W left to free memory."""
        return self._is_within(saved + sum(self._costs.stages[rank].in_flight_bytes))

    def _fits_backward(self, rank: int) -> bool:
        return self._is_within(self._saved[rank] + self._costs.stages[rank].gradient_bytes)

    def _is_within(self, num_bytes: int) -> bool:
        limit = self._costs.memory_limit
        return limit is None or num_bytes <= limit
