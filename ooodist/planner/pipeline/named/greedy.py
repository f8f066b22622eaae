"""Builds a pipeline schedule by appending actions to ranks, and tracks when each of them ends.

The heuristics of Zero Bubble are built on it: they decide which F and I comes next on a rank, and
whether W fills the time until its input arrives.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from ooodist.planner.pipeline.actions import Action, Kind, Schedule, check_size
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.dependencies import SPLIT_KINDS, needs_of, receiver_of
from ooodist.planner.pipeline.simulate import Links


class Making:
    """A schedule that is being made.

    Args:
        rank_of: the rank of each stage.
        microbatches: the number of micro-batches in a step.
        costs: the costs of the stages.
        least_idle: seconds for which each rank may always be idle; empty: none.

    Attributes:
        now: when each rank is free, in seconds.
        idle: seconds that each rank has waited since its first F.
        done: the number of actions done, by stage and kind.
        saved: the bytes that each rank keeps.
        weights: for each rank, the stages of the W that it could run now, the oldest first.

    Raises:
        UserError: there is no stage or no micro-batch.
    """

    def __init__(
        self,
        rank_of: tuple[int, ...],
        microbatches: int,
        costs: PipelineCosts,
        least_idle: Sequence[float] = (),
    ) -> None:
        stages, ranks = len(rank_of), max(rank_of, default=-1) + 1
        check_size(stages, microbatches)
        self._rank_of, self._microbatches, self._costs = rank_of, microbatches, costs
        self._least_idle = least_idle or [0.0] * ranks
        self._links = Links(rank_of)
        self._receivers = {
            (stage, kind): receiver_of(stage, kind, stages)
            for stage in range(stages)
            for kind in SPLIT_KINDS
        }
        # When the inputs of a stage's F and I arrive from another stage, for each micro-batch.
        self._arrivals: dict[tuple[int, str], list[float]] = {
            (stage, kind): []
            for stage in range(stages)
            for kind in SPLIT_KINDS
            if any(maker != stage for maker, _ in needs_of(stage, kind, stages))
        }
        self._actions: list[list[Action]] = [[] for _ in range(ranks)]
        self.now = [0.0] * ranks
        self.idle = [0.0] * ranks
        self._most_idle = 0.0
        self.done: dict[tuple[int, str], int] = defaultdict(int)
        self.saved = [0] * ranks
        for rank, cost in zip(rank_of, costs.stages, strict=True):
            self.saved[rank] += cost.base_bytes
        self.weights: list[deque[int]] = [deque() for _ in range(ranks)]

    def schedule(self, name: str) -> Schedule:
        """The schedule, with all W that are left at the end."""
        for rank, weights in enumerate(self.weights):
            while weights:
                self.append_weight(rank)
        return Schedule(name, self._rank_of, self._microbatches, tuple(map(tuple, self._actions)))

    def is_ready(self, stage: int, kind: str) -> bool:
        """Whether the input of the stage's next action of this kind is computed."""
        done, arrivals = self.done[stage, kind], self._arrivals.get((stage, kind))
        if kind == Kind.I and done == self.done[stage, Kind.F]:
            return False
        return done < (self._microbatches if arrivals is None else len(arrivals))

    def append(self, stage: int, kind: str) -> None:
        """Appends the stage's next F, I or W, whose input is computed."""
        assert self.is_ready(stage, kind)
        rank, cost = self._rank_of[stage], self._costs.stages[stage]
        start = max(self.now[rank], self.arrival(stage, kind))
        if start > self.now[rank] and self._actions[rank]:
            self.idle[rank] += start - self.now[rank]
            self._most_idle = max(self._most_idle, self.idle[rank])
        end = self.now[rank] = start + cost.seconds(kind)
        self.saved[rank] += sum(cost.saved_bytes(kind))
        self._actions[rank].append(Action(stage, kind, self.done[stage, kind]))
        self.done[stage, kind] += 1
        if kind == Kind.I:
            self.weights[rank].append(stage)
        receiver = self._receivers[stage, kind]
        if receiver is not None:
            at = self._links.arrival(stage, receiver, end, cost.transfer_seconds(kind))
            self._arrivals[receiver, kind].append(at)

    def append_weight(self, rank: int) -> None:
        """Appends the oldest W that the rank could run now."""
        self.append(self.weights[rank].popleft(), Kind.W)

    def arrival(self, stage: int, kind: str) -> float:
        """When the input of the stage's next action arrives from another stage; 0: from none."""
        arrivals = self._arrivals.get((stage, kind))
        return arrivals[self.done[stage, kind]] if arrivals else 0.0

    def fill(self, stage: int, kind: str, *, always: bool = False, if_idle: bool = True) -> None:
        """Appends W until the input of the stage's next action of this kind arrives.

        Args:
            stage: the stage.
            kind: F or I.
            always: a gap shorter than W is filled, too.
            if_idle: it is if the rank would otherwise have been idle for longer than any other.
        """
        rank = self._rank_of[stage]
        weights, arrival = self.weights[rank], self.arrival(stage, kind)

        def is_in_time() -> bool:
            return self.now[rank] + self._costs.stages[weights[0]].weight_gradient <= arrival

        while weights and is_in_time():
            self.append_weight(rank)
        fills = always or (if_idle and self.is_too_idle(rank, arrival))
        if weights and self.now[rank] < arrival and fills:
            self.append_weight(rank)

    def make_room(self, rank: int, num_bytes: int) -> None:
        """Appends W until so many more bytes fit, or no W is left."""
        while self.weights[rank] and not self.fits(rank, num_bytes):
            self.append_weight(rank)

    def is_too_idle(self, rank: int, until: float) -> bool:
        """Whether a rank idle until then would have waited longer than any other has."""
        most = max(self._most_idle, self._least_idle[rank])
        return self.idle[rank] + until - self.now[rank] > most

    def fits(self, rank: int, num_bytes: int) -> bool:
        """Whether the rank can keep so many more bytes."""
        limit = self._costs.memory_limit
        return limit is None or self.saved[rank] + num_bytes <= limit
