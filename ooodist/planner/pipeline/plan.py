"""Plans a pipeline from layer costs: its stages and a schedule, by name, from a file, or the best.

::

    layers --partition--> stages --place--> ranks --schedule--> actions

Stages are placed on ranks round-robin (0 1 2 3 0 1 2 3), or for ZB-V in the shape of a V
(0 1 2 3 3 2 1 0).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ooodist.errors import UserError
from ooodist.planner.pipeline import check as pipeline_check
from ooodist.planner.pipeline.actions import Schedule, check_size, from_csv, trained_from
from ooodist.planner.pipeline.costs import LacksMemory, PipelineCosts, forward_only
from ooodist.planner.pipeline.layer_costs import ModelCosts, balanced_parts, stage_costs
from ooodist.planner.pipeline.named.kinds import KINDS
from ooodist.planner.pipeline.named.schedules import round_robin, v_shape
from ooodist.planner.pipeline.search import auto, best_known, fastest_named_seconds
from ooodist.planner.pipeline.simulate import (
    PipelineTimeline,
    pipeline_period,
    simulate_pipeline,
    step_seconds,
)
from ooodist.util.yaml_dataclass import did_you_mean

AUTO = "auto"
Finder = Callable[[tuple[int, ...], int, PipelineCosts, int], Schedule]  # such as auto, best_known
NAMES = tuple(KINDS)
MOST_CHUNKS = 3  # always searched if the number of chunks is not given
FURTHER_STAGE = 0.05  # share of the step that each further chunk costs: overhead, and more tracing
MOST_NAMED_CHUNKS = 8  # searched only if a named schedule with them beats all plans so far


@dataclass(frozen=True)
class PipelinePlan:
    """A split into stages, with a schedule and costs for them.

    Attributes:
        parts: the range of layers of each stage.
        schedule: the schedule of all ranks.
        costs: the costs of the stages.
        seconds_alone: seconds in which one process with the cores of a rank trains on the batch of
            a step; None: not measured.
    """

    parts: tuple[range, ...]
    schedule: Schedule
    costs: PipelineCosts
    seconds_alone: float | None = None

    @property
    def timeline(self) -> PipelineTimeline:
        """The timeline of a simulated step."""
        return simulate_pipeline(self.schedule, self.costs)

    @property
    def seconds(self) -> float:
        """Seconds of a step as it is run: with a barrier at its end, or among many."""
        return step_seconds(self.schedule, self.costs)

    @property
    def period(self) -> float:
        """Seconds of a step among many, where ranks do not wait for each other at its end."""
        return pipeline_period(self.schedule, self.costs)


def check_name(name: str, chunks: int | None) -> None:
    """Raises UserError unless there is a schedule of that name with so many stages per rank.

    Args:
        name: one of NAMES, ``auto``, or a CSV file.
        chunks: stages per rank; None: the schedule's default.
    """
    if name == AUTO or _is_file(name):
        return
    if name not in KINDS:
        raise UserError(
            f"parallel.schedule is {name}{did_you_mean(name, [AUTO, *NAMES])}; it must be {AUTO}, "
            f"one of {', '.join(NAMES)}, or a file as schedule.csv"
        )
    kind = KINDS[name]
    if chunks is not None and not kind.may_have(chunks):
        raise UserError(
            f"parallel.chunks is {chunks}, but the schedule {name} has {kind.chunks} "
            f"stage{'s' if kind.chunks > 1 else ''} a rank; leave chunks out, or take another "
            "schedule"
        )


def chunks_of_split(stages: int, ranks: int) -> int:
    """The stages per rank of ``parallel.split``; raises UserError if ranks would differ."""
    if stages % ranks:
        raise UserError(
            f"parallel.split makes {stages} stages, but there are {ranks} ranks; every rank must "
            "have as many stages as the others"
        )
    return stages // ranks


def make_plans(
    costs: ModelCosts, ranks: int, microbatches: int, name: str, chunks: int | None = None
) -> Iterator[PipelinePlan]:
    """Yields the plans for a name: one, or for ``auto`` one for each split and placement that may
    be the best.

    Args:
        costs: the costs of the layers.
        ranks: the number of ranks in the pipeline.
        microbatches: the number of micro-batches in a step.
        name: as in :func:`check_name`.
        chunks: stages per rank; None: the schedule's default.

    Raises:
        UserError: there are too few layers, or nothing fits into the memory limit.
    """
    check_name(name, chunks)
    check_size(ranks, microbatches)
    if name != AUTO:
        yield _plan(costs, ranks, microbatches, name, chunks)
        return
    refused = _Refused(costs)
    best = math.inf
    for number in [chunks] if chunks else range(1, MOST_NAMED_CHUNKS + 1):
        if best < math.inf and len(costs.layers) < ranks * number:
            break
        try:
            splits = balanced_parts(costs, ranks, number, microbatches)
        except UserError as error:
            refused.note(error)
            continue
        for parts, rank_of in itertools.product(splits, _placements(ranks, number)):
            stages = stage_costs(costs, parts, rank_of)
            is_searched = bool(chunks) or number <= MOST_CHUNKS
            if not is_searched and fastest_named_seconds(rank_of, microbatches, stages) >= best:
                continue
            try:
                plan = PipelinePlan(parts, auto(rank_of, microbatches, stages), stages)
            except UserError as error:
                refused.note(error, parts)
                continue
            best = min(best, plan.seconds)
            yield plan
    if best == math.inf:
        raise refused.least()


def make_plan(
    costs: ModelCosts, ranks: int, microbatches: int, name: str, chunks: int | None = None
) -> PipelinePlan:
    """The plan of :func:`make_plans` that is fastest in simulation. Raises UserError."""
    plans = make_plans(costs, ranks, microbatches, name, chunks)
    return min(plans, key=lambda plan: plan.seconds)


def first_plan(
    costs: ModelCosts, ranks: int, microbatches: int, chunks: int | None = None
) -> PipelinePlan:
    """Finds stages to start with and the best known schedule for them, without a search.

    :func:`make_plan` with ``auto`` searches, which takes time. Here each further stage per rank
    must pay for itself: it must save ``FURTHER_STAGE`` of the step.

    Args and errors are those of :func:`make_plans`.
    """
    check_size(ranks, microbatches)
    refused = _Refused(costs)
    plans: list[tuple[float, PipelinePlan]] = []
    for number in [chunks] if chunks else range(1, MOST_CHUNKS + 1):
        try:
            splits = balanced_parts(costs, ranks, number, microbatches)
        except UserError as error:
            refused.note(error)
            continue
        for parts, rank_of in itertools.product(splits, _placements(ranks, number)):
            try:
                stages = stage_costs(costs, parts, rank_of)
                plan = PipelinePlan(parts, best_known(rank_of, microbatches, stages), stages)
            except UserError as error:
                refused.note(error, parts)
                continue
            more = 1 + FURTHER_STAGE * (number - 1)
            plans.append((more * plan.seconds, plan))
    if not plans:
        raise refused.least()
    return min(plans, key=lambda each: each[0])[1]


def placed(
    parts: tuple[range, ...],
    costs: PipelineCosts,
    ranks: int,
    microbatches: int,
    name: str,
    find: Finder = auto,
) -> PipelinePlan:
    """The plan for given stages.

    Args:
        parts: the range of layers of each stage.
        costs: the costs of the stages.
        ranks, microbatches, name: as in :func:`make_plans`.
        find: finds a schedule if the name is ``auto``.

    Raises:
        UserError: the schedule has another number of stages, or does not fit into memory.
    """
    chunks = len(parts) // ranks
    check_name(name, chunks)
    if _is_file(name):
        given = _read(Path(name), ranks, microbatches)
        if given.stages != len(parts):
            raise UserError(
                f"parallel.schedule {name} has {given.stages} stages, but parallel.split makes "
                f"{len(parts)}; change the one or the other"
            )
        return PipelinePlan(parts, given, costs)
    if name == AUTO:
        plans = [
            PipelinePlan(parts, find(rank_of, microbatches, costs, 0), costs)
            for rank_of in _placements(ranks, chunks)
        ]
        return min(plans, key=lambda plan: plan.seconds)
    schedule = KINDS[name].make(ranks, microbatches, chunks, costs)
    pipeline_check.check(schedule, costs)
    return PipelinePlan(parts, schedule, costs)


def reschedule(
    plan: PipelinePlan,
    name: str,
    costs: PipelineCosts,
    first_trained: int = 0,
    find: Finder = auto,
) -> PipelinePlan:
    """A plan with the same stages on the same ranks, scheduled for new costs.

    Args:
        plan: the plan with these stages; if the name is a file, its schedule must be that of the
            file, in which all stages train.
        name: as in :func:`check_name`.
        costs: the costs of the stages if all of them train.
        first_trained: the stages before this one only run forward; the new plan's costs are those
            of :func:`forward_only`.
        find: finds a schedule if the name is ``auto``.

    Raises:
        UserError: the schedule does not fit into the memory limit, or there is no such stage.
    """
    schedule = plan.schedule
    costs = forward_only(costs, first_trained)
    if name == AUTO:
        schedule = find(schedule.rank_of, schedule.microbatches, costs, first_trained)
    elif not _is_file(name):
        chunks = schedule.stages // schedule.ranks
        schedule = KINDS[name].make(schedule.ranks, schedule.microbatches, chunks, costs)
    schedule = trained_from(schedule, first_trained)
    pipeline_check.check(schedule, costs)
    return replace(plan, schedule=schedule, costs=costs)


def _plan(
    costs: ModelCosts, ranks: int, microbatches: int, name: str, chunks: int | None
) -> PipelinePlan:
    if _is_file(name):
        given = _read(Path(name), ranks, microbatches)
        number, rank_of = given.stages // ranks, given.rank_of
    else:
        number = chunks or KINDS[name].chunks
        rank_of = KINDS[name].rank_of(ranks, number)
    refused = _Refused(costs)
    for parts in balanced_parts(costs, ranks, number, microbatches):
        try:
            stages = stage_costs(costs, parts, rank_of)
            return placed(parts, stages, ranks, microbatches, name)
        except UserError as error:
            refused.note(error, parts)
    raise refused.least()


class _Refused:
    """Why splits were refused, to tell at the end which one was the nearest.

    Args:
        costs: the costs of the layers that were split.
    """

    def __init__(self, costs: ModelCosts) -> None:
        self._costs = costs
        self._first: UserError | None = None
        self._least: tuple[LacksMemory, tuple[range, ...]] | None = None

    def note(self, error: UserError, parts: tuple[range, ...] = ()) -> None:
        """Adds why a split into these parts was refused."""
        self._first = self._first or error
        if isinstance(error, LacksMemory) and (
            self._least is None or error.lacking < self._least[0].lacking
        ):
            self._least = error, parts

    def least(self) -> UserError:
        """The error of the split that lacks least memory, with the layers of its stages; or
        the first error, if none lacks memory."""
        if self._least is None:
            assert self._first is not None
            return self._first
        error, parts = self._least
        names = [layer.name for layer in self._costs.layers]
        stages = (
            f"{number} {names[part.start]} to {names[part.stop - 1]}"
            for number, part in enumerate(parts)
        )
        return LacksMemory(f"{error}\nstages: {', '.join(stages)}", error.lacking)


def _read(file: Path, ranks: int, microbatches: int) -> Schedule:
    """Reads and checks a schedule for so many ranks and micro-batches. Raises UserError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"parallel.schedule {file} cannot be read: {error}") from error
    schedule = from_csv(text, str(file))
    if (schedule.ranks, schedule.microbatches) != (ranks, microbatches):
        raise UserError(
            f"parallel.schedule {file} is for {schedule.ranks} ranks and {schedule.microbatches} "
            f"micro-batches, but pipeline is {ranks} and microbatches {microbatches}; change them, "
            "or the file"
        )
    if schedule.stages % ranks:
        raise UserError(
            f"parallel.schedule {file} has {schedule.stages} stages on {ranks} ranks; every rank "
            "must have as many as the others"
        )
    pipeline_check.check(schedule)
    if schedule.first_trained > 0:  # otherwise a stage left out by mistake would silently not train
        raise UserError(
            f"parallel.schedule {file} has no I or B of stage 0; it must have those of all "
            "stages, and a job leaves out what it does not need"
        )
    return schedule


def _is_file(name: str) -> bool:
    return name.endswith(".csv")


def _placements(ranks: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """Yields the possible placements, each as the rank of every stage."""
    yield round_robin(ranks, chunks)
    if chunks == 2 and ranks > 1:
        yield v_shape(ranks)
