"""Schedules are searched, tried and taken over while a pipeline trains.

::

    all ranks | the best known ... | measured | ... | trial | the fastest ... | measured | ...
    rank 0    |                    |          |  search     |
                                      (a process beside it)

Training begins with the best known schedule for what layers cost. Some of its steps, with B and W
apart, tell what stages cost. With that the search runs beside the training; what it finds, and
known schedules that should be nearly as fast, take turns with the current one. The fastest stays
until steps take another time. Then, or where steps in a trial were not as predicted, stages are
measured and schedules searched again.

Stages stay as they were cut, and on their ranks; only schedules that compute the same numbers, bit
by bit, are tried. All ranks decide alike: each decision is made of numbers that all have.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.planner.pipeline.search import NEARLY
from ooodist.planner.pipeline.search_process import FoundSchedules, ScheduleRequest, ScheduleSearch
from ooodist.step.launch import Batch
from ooodist.trainer.drift import DRIFTED_WINDOWS, DriftDetector
from ooodist.trainer.trial import Candidate, Trial, is_surprise, timed
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")

PLANNING_STEPS = 10  # which planning is taken to cost: all that is slower while it goes on
WARM_UP_STEPS = 3  # libraries tune themselves
TIMED_STEPS = 9
MEASURED_STEPS = 7  # the first does not count
POLL_STEPS = 16  # how often ranks ask whether the search has ended
MOST_SEARCHES = 3  # until steps are no longer as they were
WORTH_TRYING = 0.02  # how much faster than all that were tried another has to be, predicted

Logs = dict[str, Any]


class Job(Protocol):
    """A pipeline that trains.

    Attributes:
        is_trying: it measures, waits for a search, or tries, or may do so any moment.
    """

    is_trying: bool
    left: int | None

    def train(self, batches: Sequence[Batch]) -> Logs:
        """A step, as it is carried out at present."""

    def carry_out(self, plan: PipelinePlan, *, is_measured: bool = False) -> None:
        """Steps are of this plan from now on; if they are measured, B and W are apart."""

    def measured_in_steps(self) -> PipelineCosts:
        """What stages have cost since steps are measured; all ranks call it."""

    def computes_alike(self, one: Schedule, other: Schedule) -> bool:
        """Whether two schedules of its stages compute the same numbers, bit by bit."""


class LiveSchedule:
    """Trains on batches, and finds out which schedule is the fastest.

    Args:
        engine: of the ranks.
        job: what is trained.
        plan: to begin with.
        share: the most that planning may take of the training's time.

    Attributes:
        plan: the fastest that is known.
    """

    def __init__(self, engine: Engine, job: Job, plan: PipelinePlan, *, share: float) -> None:
        self._engine = engine
        self._job = job
        self._share = share
        self._known: dict[str, PipelinePlan] = {}
        self._add(plan)
        self.plan = self._carried_out = plan
        self._seconds = 0.0  # that a step with it takes
        self._tried: set[str] = set()  # since the last drift
        self._again: set[str] = set()  # tried before it
        self._searches = 0
        self._search: ScheduleSearch | None = None
        self._besides = 0.0  # seconds of a step that no schedule changes
        self._steps = 0
        self._times: list[float] = []
        self._windows = DRIFTED_WINDOWS
        self._next: Callable[[Sequence[Batch]], Logs] = self._begin
        job.is_trying = True

    def __call__(self, batches: Sequence[Batch]) -> Logs:
        """Trains a step, and returns the logs."""
        return self._next(batches)

    def close(self) -> None:
        """Ends the search, if one is under way."""
        if self._search is not None:
            self._search.close()
            self._search = None

    # Before planning

    def _begin(self, batches: Sequence[Batch]) -> Logs:
        self._next = self._go_on
        if not self._consider():
            left = self._job.left
            logger.info(
                "pipeline: the schedule stays %s, as to try others would take as long as about %d "
                "steps, and may take a share of %g (planning.share) of %s",
                self.plan.schedule.name,
                PLANNING_STEPS,
                self._share,
                "the steps trained so far" if left is None else f"the training's {left} steps",
            )
        return self._next(batches)

    def _go_on(self, batches: Sequence[Batch]) -> Logs:
        logs = self._job.train(batches)
        self._steps += 1
        # After twice as many steps each time: all ranks wait for each other to decide.
        if self._steps >= POLL_STEPS and self._steps.bit_count() == 1:
            self._consider()
        return logs

    def _consider(self) -> bool:
        """Begins to plan if that takes little of the training's time."""
        steps = max(self._steps, self._job.left or 0)
        most = self._share * float(self._engine.all_reduce(np.array([steps]), "max")[0])
        self._job.is_trying = most >= PLANNING_STEPS
        if self._job.is_trying:
            self._begin_timing()
        return self._job.is_trying

    def _begin_timing(self) -> None:
        self._times.clear()
        self._next, self._job.is_trying = self._time, True

    def _time(self, batches: Sequence[Batch]) -> Logs:
        """What predictions are compared with."""
        logs, seconds = timed(self._job.train, batches)
        self._times.append(seconds)
        if len(self._times) == WARM_UP_STEPS + TIMED_STEPS:
            own = np.array([statistics.median(self._times[WARM_UP_STEPS:])])
            self._seconds = float(self._engine.all_reduce(own, "max")[0])
            self._begin_measuring()
        return logs

    # Searches

    def _begin_measuring(self) -> None:
        self._steps = 0
        self._job.carry_out(self.plan, is_measured=True)
        self._next, self._job.is_trying = self._measure, True

    def _measure(self, batches: Sequence[Batch]) -> Logs:
        logs = self._job.train(batches)
        self._steps += 1
        if self._steps == MEASURED_STEPS:
            self._begin_search(self._job.measured_in_steps())
        return logs

    def _begin_search(self, costs: PipelineCosts) -> None:
        for name, plan in self._known.items():
            self._known[name] = replace(plan, costs=costs)
        self._take_over(self._known[self.plan.schedule.name])
        simulated = self.plan.timeline.step_seconds
        self._besides = self._seconds - simulated
        logger.info(
            "pipeline: searching a schedule beside the training; a step takes %.1f ms with %s, as "
            "its actions say %.1f ms, and %.1f ms besides",
            self._seconds * 1e3,
            self.plan.schedule.name,
            simulated * 1e3,
            self._besides * 1e3,
        )
        if self._engine.rank == 0:
            schedule = self.plan.schedule
            request = ScheduleRequest(schedule.rank_of, schedule.microbatches, costs)
            self._search = ScheduleSearch(request)
        self._searches += 1
        self._steps = 0
        self._next = self._wait

    def _wait(self, batches: Sequence[Batch]) -> Logs:
        logs = self._job.train(batches)
        self._steps += 1
        if self._steps % POLL_STEPS == 0:
            is_done = self._search is not None and self._search.is_done()
            if self._engine.all_reduce(np.array([int(is_done)]), "max")[0]:
                self._take_what_was_found()
        return logs

    def _take_what_was_found(self) -> None:
        found = FoundSchedules()
        if self._search is not None:
            try:
                found = self._search.answer()
            except (UserError, OSError) as error:
                logger.warning(
                    "pipeline: the search failed, so %s stays: %s", self.plan.schedule.name, error
                )
            self.close()
        text = self._engine.broadcast_text(yaml_dataclass.dump(found))
        found = yaml_dataclass.read_text(FoundSchedules, text, "of rank 0")
        for schedule in found.schedules:
            if self._job.computes_alike(schedule, self.plan.schedule):
                self._add(replace(self.plan, schedule=schedule))
        others = self._worth_trying()
        if others:
            self._try([self.plan, *others])
        else:
            logger.info(
                "pipeline: nothing was found that should be faster; %s stays",
                self.plan.schedule.name,
            )
            self._settle(self.plan)

    def _add(self, plan: PipelinePlan) -> None:
        """Knows it from now on, by a name of its own; unless it is known already."""
        schedule = plan.schedule
        if any(schedule.actions == other.schedule.actions for other in self._known.values()):
            return
        name, number = schedule.name, 1
        while name in self._known:
            number += 1
            name = f"{schedule.name}_{number}"
        self._known[name] = replace(plan, schedule=replace(schedule, name=name))

    def _worth_trying(self) -> list[PipelinePlan]:
        """Others than the current one: at first all that should be nearly as fast as the fastest,
        and all that were tried before steps took another time; then those that should be faster
        than all that were tried."""
        others = [plan for name, plan in self._known.items() if name not in self._tried]
        others = [plan for plan in others if plan.schedule.name != self.plan.schedule.name]
        if self._tried:
            most = (1 - WORTH_TRYING) * self._seconds
        else:
            most = (1 + NEARLY) * min(map(self._predicted, self._known.values()))
        return [
            plan
            for plan in others
            if self._predicted(plan) <= most or plan.schedule.name in self._again
        ]

    def _predicted(self, plan: PipelinePlan) -> float:
        """Seconds of a step."""
        return plan.timeline.step_seconds + self._besides

    # Trials

    def _try(self, plans: Sequence[PipelinePlan]) -> None:
        candidates = list(map(self._candidate, plans))
        trial = Trial(self._engine, candidates)
        self._tried |= {each.name for each in candidates}
        self._again -= self._tried

        def run(batches: Sequence[Batch]) -> Logs:
            logs = trial(batches)
            if trial.fastest is not None:
                self._seconds = trial.seconds[candidates.index(trial.fastest)]
                self._settle(self._known[trial.fastest.name])
                if is_surprise(candidates, trial.seconds) and self._searches < MOST_SEARCHES:
                    self._begin_measuring()
            return logs

        self._next = run

    def _candidate(self, plan: PipelinePlan) -> Candidate:
        def run(batches: Sequence[Batch]) -> Logs:
            if self._carried_out is not plan:
                self._carry_out(plan)
            return self._job.train(batches)

        return Candidate(plan.schedule.name, run, predicted=self._predicted(plan))

    def _settle(self, plan: PipelinePlan) -> None:
        self._take_over(plan)
        self._job.is_trying = False
        self._next = DriftDetector(self._engine, self._job.train, self._windows, self._drifted)

    def _take_over(self, plan: PipelinePlan) -> None:
        self.plan = plan
        self._carry_out(plan)

    def _carry_out(self, plan: PipelinePlan) -> None:
        self._carried_out = plan
        self._job.carry_out(plan)

    def _drifted(self, before: float, now: float) -> None:
        logger.info(
            "a step takes %.1f ms now, and took %.1f ms when schedules had been tried: they are "
            "tried again",
            now * 1e3,
            before * 1e3,
        )
        self._windows *= 2  # what comes and goes is not followed for ever
        self._again, self._tried, self._searches = self._tried, set(), 0
        self._begin_timing()
