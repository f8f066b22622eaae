"""Simulates a pipeline schedule: when each action runs, and how many bytes each rank keeps.

A rank runs one action at a time, in its order, and waits until its inputs have arrived. A transfer
begins when the result is ready and the link is free, and takes no time of the ranks; each pair of
ranks has a link in each direction::

    rank 0   F0  F1  .   .   I0  W0  I1  W1
    rank 1   .   F0  I0  W0  F1  I1  W1

With replicas of the pipeline, the gradients of a stage are exchanged (summed over the replicas)
beside other work, one stage of a rank after the other: once the last W of the stage is done, or in
buckets, if that is in the rank's tail (see costs.py). The rank's update waits for its actions and
its exchanges. Here rank 0 has stages 0 and 2, and its tail, 0W0 and 0W1, runs in two buckets::

    rank 0   ...  2W1  0I0  0I1  0W0  0W1
    exchange          |-- stage 2 --|---- stage 0 ----|
    rank 0                                             update
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import (
    COMPUTE_KINDS,
    Action,
    Kind,
    Schedule,
    tail_of,
    without_transfers,
)
from ooodist.planner.pipeline.costs import PipelineCosts, forward_only
from ooodist.planner.pipeline.dependencies import needs_of, result_of, users_of

MOST_STEPS = 40  # that are simulated to find out how long one takes among many
SAME = 1e-9  # relative difference of times that count as the same

Message = tuple[str, int, int, int]  # the result, the stages that make and use it, the micro-batch


@dataclass(frozen=True)
class Run:
    """An action and when it ran, in seconds from the beginning of the step."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class MeasuredRun(Run):
    """An action that a rank has carried out.

    Where W's run bucket by bucket, ``action`` is the one in whose place others may run.

    Attributes:
        waited: seconds of it that were spent waiting for a message.
    """

    waited: float


@dataclass(frozen=True)
class Exchange:
    """The sum of a stage's gradients over the replicas, in seconds from the beginning of the step.

    In a simulation it is that of all buckets together, and may start later than the first of them
    is done: after the exchange of another stage. Measured is each bucket by itself.
    """

    stage: int
    start: float
    end: float


@dataclass(frozen=True)
class PipelineTimeline:
    """The timeline of one step.

    Attributes:
        runs: the runs of each rank, in order.
        peak_bytes: the most bytes each rank keeps, including what its stages keep all the time.
        updates: seconds of the optimizer on each rank, after its last action and exchange.
        exchanges: the exchanges of each rank that take time, in order.
    """

    runs: tuple[tuple[Run, ...], ...]
    peak_bytes: tuple[int, ...]
    updates: tuple[float, ...]
    exchanges: tuple[tuple[Exchange, ...], ...]

    @property
    def makespan(self) -> float:
        """Seconds from the start of the step to the last end of an action on any rank."""
        return max((run.end for runs in self.runs for run in runs), default=0.0)

    @property
    def step_seconds(self) -> float:
        """Seconds from the start of a step to the end of its last update on any rank.

        This is a step's time where ranks wait for each other before their updates; where they do
        not, many steps take less: see :func:`pipeline_period`.
        """
        return max(
            start + update for start, update in zip(self.update_starts, self.updates, strict=True)
        )

    @property
    def update_starts(self) -> tuple[float, ...]:
        """When the update of each rank begins."""
        return tuple(
            max([run.end for run in runs[-1:]] + [each.end for each in exchanges[-1:]], default=0.0)
            for runs, exchanges in zip(self.runs, self.exchanges, strict=True)
        )

    @property
    def exposed_exchange(self) -> float:
        """Seconds by which this step is longer than it would be without exchanges."""
        ends = [runs[-1].end if runs else 0.0 for runs in self.runs]
        alone = max(end + update for end, update in zip(ends, self.updates, strict=True))
        return self.step_seconds - alone

    @property
    def spans(self) -> tuple[float, ...]:
        """Seconds from each rank's own first start to its last end."""
        return tuple(runs[-1].end - runs[0].start if runs else 0.0 for runs in self.runs)

    @property
    def busy(self) -> tuple[float, ...]:
        """Seconds in which each rank computes."""
        return tuple(sum(run.end - run.start for run in runs) for runs in self.runs)

    @property
    def bubble(self) -> float:
        """The share of the makespan in which a rank waits, averaged over the ranks."""
        total = self.makespan * len(self.runs)
        return 1 - sum(self.busy) / total if total else 0.0


class Links:
    """The links between ranks; each carries one message at a time, in one direction."""

    def __init__(self, rank_of: tuple[int, ...]) -> None:
        self._rank_of = rank_of
        self._free: dict[tuple[int, int], float] = defaultdict(float)

    def arrival(self, source: int, target: int, at: float, seconds: float) -> float:
        """Finds when a result that is ready at ``at`` arrives, taking ``seconds`` on the link."""
        link = self._rank_of[source], self._rank_of[target]
        if link[0] == link[1]:
            return at
        self._free[link] = max(at, self._free[link]) + seconds
        return self._free[link]


class Deadlock(UserError):
    """Raised when no rank can go on.

    Attributes:
        stuck: for each unfinished rank, the index of its next action.
    """

    def __init__(self, message: str, stuck: dict[int, int]) -> None:
        super().__init__(message)
        self.stuck = stuck


def simulate_pipeline(schedule: Schedule, costs: PipelineCosts) -> PipelineTimeline:
    """Simulates a step of the schedule, with exactly the transfers that it needs.

    Stages before the first one that trains have the costs of :func:`forward_only`.

    Raises:
        Deadlock: ranks wait for each other, or for results that nobody computes.
        UserError: the costs are those of another number of stages.
    """
    costs.check(schedule.stages)
    return _simulated(schedule, costs, [0.0] * schedule.ranks, Links(schedule.rank_of))


def pipeline_period(schedule: Schedule, costs: PipelineCosts) -> float:
    """The seconds of a step among many, where ranks do not wait for each other at its end.

    Each rank begins a step when it has done its update of the step before, and has the metrics of
    that step, which are computed after the last F of the last stage::

        rank 0   F F F I F W I ... update | F F F I F W I ... update |
        rank 1     F F I F I W ...   update | F F I F I W ...   update |
                                          |-------- period --------|

    Raises:
        Deadlock, UserError: as :func:`simulate_pipeline`.
    """
    costs.check(schedule.stages)
    links = Links(schedule.rank_of)

    def ends_of_step(begins: Sequence[float]) -> list[float]:
        timeline = _simulated(schedule, costs, begins, links)
        metrics = max(
            run.end for run in timeline.runs[schedule.rank_of[-1]] if run.action.kind == Kind.F
        )
        done = zip(timeline.update_starts, timeline.updates, strict=True)
        return [max(metrics, start + update) for start, update in done]

    return period_of(ends_of_step, schedule.ranks)


def period_of(ends_of_step: Callable[[Sequence[float]], list[float]], ranks: int) -> float:
    """The seconds of a step among many.

    Args:
        ends_of_step: (when each rank begins the next step) -> when it can begin the one after it.
        ranks: number of ranks.
    """
    ends = [[0.0] * ranks]  # of each step so far, by rank
    for steps in range(1, MOST_STEPS + 1):
        ends.append(ends_of_step(ends[-1]))
        # Once all ranks are as far ahead of an earlier step, the steps between repeat for ever.
        for before in range(steps - 1, max(-1, steps - 1 - ranks), -1):
            ahead = [now - then for now, then in zip(ends[-1], ends[before], strict=True)]
            if max(ahead) - min(ahead) <= SAME * max(ahead):
                return max(ahead) / (steps - before)
    half = MOST_STEPS // 2
    return (max(ends[-1]) - max(ends[half])) / (MOST_STEPS - half)


def step_seconds(schedule: Schedule, costs: PipelineCosts) -> float:
    """The seconds of a step as it is run: with a barrier at its end, or among many.

    Raises:
        Deadlock, UserError: as :func:`simulate_pipeline`.
    """
    if costs.has_barrier:
        return simulate_pipeline(schedule, costs).step_seconds
    return pipeline_period(schedule, costs)


def _simulated(
    schedule: Schedule, costs: PipelineCosts, begins: Sequence[float], links: Links
) -> PipelineTimeline:
    """Simulates a step that each rank begins at its own time, with links that may be in use."""
    schedule = without_transfers(schedule)
    first = schedule.first_trained
    costs = forward_only(costs, first)
    runs: list[list[Run]] = [[] for _ in schedule.actions]
    there: dict[Message, float] = {}
    waiting: dict[Message, int] = {}
    parts = [(stage, kind) for stage in range(schedule.stages) for kind in COMPUTE_KINDS]
    needed = {part: needs_of(*part, schedule.stages) for part in parts}
    users = {part: users_of(*part, schedule.stages, first) for part in parts}
    ready = list(range(schedule.ranks))
    while ready:
        rank = ready.pop()
        actions = schedule.actions[rank]
        time = runs[rank][-1].end if runs[rank] else begins[rank]
        while len(runs[rank]) < len(actions):
            action = actions[len(runs[rank])]
            stage, kind, microbatch = action
            needs = [(made, maker, stage, microbatch) for maker, made in needed[stage, kind]]
            missing = next((message for message in needs if message not in there), None)
            if missing is not None:
                waiting[missing] = rank
                break
            cost = costs.stages[stage]
            start = max([time, *(there[message] for message in needs)])
            time = start + cost.seconds(kind)
            runs[rank].append(Run(action, start, time))
            result = result_of(kind)
            for user, _ in users[stage, kind]:
                message = result, stage, user, microbatch
                there[message] = time
                if user != stage:
                    seconds = cost.transfer_seconds(kind)
                    there[message] = links.arrival(stage, user, time, seconds)
                if message in waiting:
                    ready.append(waiting.pop(message))
    stuck = {
        rank: len(runs[rank])
        for rank, actions in enumerate(schedule.actions)
        if len(runs[rank]) < len(actions)
    }
    if stuck:
        named = "; ".join(
            f"rank {rank} at {schedule.actions[rank][number]}" for rank, number in stuck.items()
        )
        raise Deadlock(f"schedule {schedule.name} stands still: {named}", stuck)
    updates = [0.0] * schedule.ranks
    for rank, cost in zip(schedule.rank_of, costs.stages, strict=True):
        updates[rank] += cost.update
    return PipelineTimeline(
        tuple(map(tuple, runs)),
        peak_bytes(schedule, costs),
        tuple(updates),
        tuple(exchanges_of(each, costs) for each in runs),
    )


def exchanges_of(runs: Sequence[Run], costs: PipelineCosts) -> tuple[Exchange, ...]:
    """The exchanges of a rank that take time, given what it runs in a step."""
    ready: dict[int, float] = {}  # the end of each stage's last W
    for run in runs:
        if run.action.kind in (Kind.W, Kind.B):
            ready[run.action.stage] = run.end
    if not any(costs.stages[stage].exchange for stage in ready):
        return ()
    exchanges: list[Exchange] = []
    tails = _tail_seconds([run.action for run in runs], costs)
    for stage, at in sorted(ready.items(), key=lambda item: (item[1], item[0])):
        if costs.stages[stage].exchange:
            free = exchanges[-1].end if exchanges else 0.0
            span = costs.stages[stage].exchange_span(at, tails.get(stage, 0.0), free)
            exchanges.append(Exchange(stage, *span))
    return tuple(exchanges)


def _tail_seconds(actions: Sequence[Action], costs: PipelineCosts) -> dict[int, float]:
    """Finds for each stage with W's in a rank's tail the seconds from their start to their end.

    The sums are those of :class:`ooodist.planner.pipeline.evaluate.Evaluator`, to the last bit.
    """
    ends: dict[int, float] = {}
    seconds: dict[int, float] = {}
    elapsed = 0.0  # from here to the end of the rank's last action
    for stage, _, _ in reversed(tail_of(actions)):
        ends.setdefault(stage, elapsed)
        elapsed += costs.stages[stage].weight_gradient
        seconds[stage] = elapsed - ends[stage]
    return seconds


def saved_bytes(schedule: Schedule, costs: PipelineCosts) -> tuple[tuple[int, ...], ...]:
    """Finds for each rank the most bytes that it keeps during each of its actions.

    They depend on the order of the rank's actions alone, not on when they run. Stages before the
    first one that trains keep nothing for I and W.
    """
    costs = forward_only(costs, schedule.first_trained)
    result = []
    for actions in without_transfers(schedule).actions:
        base = sum(costs.stages[stage].base_bytes for stage in {a.stage for a in actions})
        changes = [costs.stages[stage].saved_bytes(kind) for stage, kind, _ in actions]
        after = list(accumulate((begin + end for begin, end in changes), initial=base))
        result.append(tuple(at + begin for at, (begin, _) in zip(after, changes, strict=False)))
    return tuple(result)


def peak_bytes(schedule: Schedule, costs: PipelineCosts) -> tuple[int, ...]:
    """The most bytes that each rank keeps at any time."""
    return tuple(max(saved, default=0) for saved in saved_bytes(schedule, costs))
