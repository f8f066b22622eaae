"""Checks before anything starts that a pipeline schedule can run, and prints it as a grid.

The error for a schedule that cannot run shows its actions by rank and step, the bad one marked::

    step         4       5       6
    rank 0  |   0I0     0W0     0I1
    rank 1  |   1W0  >> 1I1 <<  1F1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import (
    COMPUTE_KINDS,
    OLD_LETTERS,
    TRANSFER_KINDS,
    Action,
    Kind,
    Schedule,
)
from ooodist.planner.pipeline.costs import (
    LacksMemory,
    PipelineCosts,
    shown_stages,
    stages_of_rank,
)
from ooodist.planner.pipeline.dependencies import RECEIVES, SENDS, needs_of, with_transfers
from ooodist.planner.pipeline.simulate import saved_bytes

SHOWN_STEPS = 4  # steps shown before and after the bad cell


class ScheduleError(UserError):
    """Raised for a schedule that cannot run.

    Attributes:
        rank: the rank at fault.
        step: index of the action in the rank's list; None if the whole rank is at fault.
    """

    def __init__(self, schedule: Schedule, rank: int, step: int | None, message: str) -> None:
        where = f"rank {rank}" if step is None else f"rank {rank}, step {step}"
        cells = grid(schedule, rank, step or 0)
        UserError.__init__(self, f"schedule {schedule.name}, {where}: {message}\n{cells}")
        self.rank, self.step = rank, step


class ScheduleLacksMemory(ScheduleError, LacksMemory):
    """Raised for a schedule that does not fit into the memory limit."""

    def __init__(
        self, schedule: Schedule, rank: int, step: int, message: str, lacking: int
    ) -> None:
        ScheduleError.__init__(self, schedule, rank, step, message)
        self.lacking = lacking


def check(schedule: Schedule, costs: PipelineCosts | None = None) -> None:
    """Raises ScheduleError unless the schedule can run.

    Each stage must do F, I and W (or F and B) of each micro-batch exactly once and on its own rank;
    stages before the first one that trains do F alone. No action may need a result that never
    arrives, the orders must not deadlock, and if costs are given, no rank may exceed the memory
    limit. If the schedule has no transfers, those it needs are added for the check.
    """
    _check_complete(schedule)
    has_transfers = any(a.kind in TRANSFER_KINDS for actions in schedule.actions for a in actions)
    full = schedule if has_transfers else with_transfers(schedule)
    if has_transfers:
        _check_transfers(schedule)
    _check_order(full)
    if costs is not None:
        costs.check(schedule.stages)
        _check_memory(schedule, costs)


def grid(schedule: Schedule, rank: int | None = None, step: int = 0) -> str:
    """One line of steps per rank; with ``rank``, only those around ``step``, marked."""
    longest = max((len(actions) for actions in schedule.actions), default=0)
    steps = range(longest)
    if rank is not None:
        steps = range(max(0, step - SHOWN_STEPS), min(longest, step + SHOWN_STEPS + 1))
    rows = [["step", *map(str, steps)]]
    for number, actions in enumerate(schedule.actions):
        cells = [str(actions[at]) if at < len(actions) else "" for at in steps]
        if number == rank and step in steps:
            cells[step - steps.start] = f">> {cells[step - steps.start]} <<"
        rows.append([f"rank {number}", *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _check_complete(schedule: Schedule) -> None:
    first = schedule.first_trained
    for rank, actions in enumerate(schedule.actions):
        seen: set[Action] = set()
        for step, action in enumerate(actions):
            stage, _, microbatch = action
            if action in seen:
                raise ScheduleError(schedule, rank, step, f"{action} comes twice")
            seen.add(action)
            if not (stage < schedule.stages and schedule.rank_of[stage] == rank):
                raise ScheduleError(
                    schedule, rank, step, f"{action} is of a stage that this rank does not have"
                )
            if microbatch >= schedule.microbatches:
                raise ScheduleError(
                    schedule,
                    rank,
                    step,
                    f"{action} is of a micro-batch beyond the {schedule.microbatches} of a step",
                )
        for stage in range(schedule.stages):
            if schedule.rank_of[stage] == rank:
                _check_stage(schedule, rank, stage, seen, first)


def _check_stage(schedule: Schedule, rank: int, stage: int, seen: set[Action], first: int) -> None:
    """Checks that a stage does all it must; ``first`` is the first stage that trains."""
    if stage < first:
        wanted: tuple[set[str], ...] = ({Kind.F},)
        rule = "without any I or B, it must do F alone"
    else:
        wanted = {Kind.F, Kind.I, Kind.W}, {Kind.F, Kind.B}
        rule = "it must do F, I and W, or F and B"
        if stage > first:
            rule += f", as stage {first} before it trains"
    for microbatch in range(schedule.microbatches):
        kinds = {kind for kind in COMPUTE_KINDS if Action(stage, kind, microbatch) in seen}
        if kinds not in wanted:
            if kinds == {Kind.F, Kind.B, Kind.W}:
                rule += f"; {OLD_LETTERS}"
            raise ScheduleError(
                schedule,
                rank,
                None,
                f"stage {stage} does {', '.join(sorted(kinds)) or 'nothing'} of micro-batch "
                f"{microbatch}; {rule}",
            )


def _check_transfers(schedule: Schedule) -> None:
    """Checks that the schedule has exactly the transfers that it needs."""
    needed = with_transfers(schedule)
    for rank, (actions, those) in enumerate(zip(schedule.actions, needed.actions, strict=True)):
        missing = Counter(those) - Counter(actions)
        for action in missing:
            raise ScheduleError(schedule, rank, None, f"{action} is missing")
        extra = Counter(actions) - Counter(those)
        for action in extra:
            step = actions.index(action)
            raise ScheduleError(schedule, rank, step, f"nobody waits for {action}")


def _check_order(schedule: Schedule) -> None:
    """Runs each rank's actions in order, each once its needs are met; refuses a deadlock."""
    combined = {a for actions in schedule.actions for a in actions if a.kind == Kind.B}
    done: set[Action] = set()
    waiting: dict[Action, int] = {}
    steps = [0] * schedule.ranks
    ready = list(range(schedule.ranks))
    while ready:
        rank = ready.pop()
        for action in schedule.actions[rank][steps[rank] :]:
            needs = _needs(schedule, action, combined)
            missing = next((need for need in needs if need not in done), None)
            if missing is not None:
                waiting[missing] = rank
                break
            done.add(action)
            steps[rank] += 1
            if action in waiting:
                ready.append(waiting.pop(action))
    if not waiting:
        return
    reasons = [
        f"{schedule.actions[rank][steps[rank]]} of rank {rank} waits for {need}"
        for need, rank in sorted(waiting.items(), key=lambda item: item[1])
    ]
    # Blame a rank that waits for a later step of its own rather than the ranks that wait for it.
    to_blame = [rank for need, rank in waiting.items() if need in schedule.actions[rank]]
    rank = min(to_blame or waiting.values())
    raise ScheduleError(schedule, rank, steps[rank], f"no rank can go on: {'; '.join(reasons)}")


def _needs(schedule: Schedule, action: Action, combined: Set[Action]) -> Iterator[Action]:
    """Yields the actions that must be done first; ``combined`` holds the schedule's B actions."""
    stage, kind, microbatch = action

    def maker_of(result: str, of: int) -> Action:
        both = Action(of, Kind.B, microbatch)
        return both if both in combined and result == Kind.I else both._replace(kind=result)

    if kind in COMPUTE_KINDS:
        for maker, result in needs_of(stage, kind, schedule.stages):
            if schedule.rank_of[maker] == schedule.rank_of[stage]:
                yield maker_of(result, maker)
            else:
                yield Action(stage, RECEIVES[result], microbatch)
        return
    for result in SENDS:
        if kind == SENDS[result]:
            yield maker_of(result, stage)
        elif kind == RECEIVES[result]:
            maker, _ = needs_of(stage, result, schedule.stages)[-1]
            yield Action(maker, SENDS[result], microbatch)


def _check_memory(schedule: Schedule, costs: PipelineCosts) -> None:
    limit = costs.memory_limit
    if limit is None:
        return
    saved = saved_bytes(schedule, costs)
    peaks = [max(those, default=0) for those in saved]
    rank = peaks.index(max(peaks))
    if peaks[rank] <= limit:
        return
    lacking, own = peaks[rank] - limit, stages_of_rank(schedule.rank_of, rank)
    first = next(at for at, num_bytes in enumerate(saved[rank]) if num_bytes > limit)
    step = _step_of(schedule.actions[rank], first)
    made_of = costs.composition(own, peaks[rank], _in_flight(schedule, costs, rank))
    raise ScheduleLacksMemory(
        schedule,
        rank,
        step,
        f"{schedule.actions[rank][step]} needs {saved[rank][first]} bytes, and the memory limit is "
        f"{limit}: {shown_stages(own)} lacks {lacking} of {peaks[rank]} bytes ({made_of}); raise "
        f"the limit by {lacking}, use fewer micro-batches in flight (another schedule) or smaller "
        "ones, or more ranks",
        lacking,
    )


def _in_flight(schedule: Schedule, costs: PipelineCosts, rank: int) -> int:
    """How many micro-batches a rank has begun and not ended where it keeps most bytes."""
    saved = saved_bytes(schedule, costs)[rank]
    until = _step_of(schedule.actions[rank], saved.index(max(saved)))
    begun: set[tuple[int, int]] = set()
    for stage, kind, microbatch in schedule.actions[rank][: until + 1]:
        if kind == Kind.F and stage >= schedule.first_trained:
            begun.add((stage, microbatch))
    for stage, kind, microbatch in schedule.actions[rank][:until]:
        if kind in (Kind.B, Kind.W):
            begun.discard((stage, microbatch))
    return len({microbatch for _, microbatch in begun})


def _step_of(actions: Sequence[Action], number: int) -> int:
    """The step of the compute action with this number (transfers are not counted)."""
    steps = [step for step, action in enumerate(actions) if action.kind in COMPUTE_KINDS]
    return steps[number]
