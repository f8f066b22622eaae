"""Searches for schedules, tries them and adopts the fastest while a pipeline trains.

::

    all ranks | the best known ... | measured | ... | trial | the fastest ... | measured | ...
    rank 0    |                    |          |  search     |
                                      (a process beside it)

Training begins with the best known schedule for the costs of the stages before they train. These
are measured again in some of its steps, with separate I and W. Given these, the search runs beside
the training; the schedules it finds, and known ones that should be nearly as fast, take turns with
the current one. The fastest stays until the step time drifts. Then, or if steps of a trial were not
as predicted, stages are measured and schedules searched again.

The split into stages and their ranks never change, and only schedules that compute bitwise equal
numbers are tried. All ranks decide alike, as decisions depend only on numbers that all share.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ooodist.engines.base import Engine
from ooodist.pipeline.assembly import Assembly
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.planner.pipeline.search import NEARLY
from ooodist.planner.pipeline.search_process import FoundSchedules, ScheduleRequest, ScheduleSearch
from ooodist.step.execution import Batch
from ooodist.trainer import live
from ooodist.trainer.live import WORTH_TRYING, LiveSearch, Logs
from ooodist.trainer.trial import Candidate, timed

logger = logging.getLogger("ooodist")

PLANNING_STEPS = 10  # the assumed cost of planning: the slowdown of steps while it goes on
WARM_UP_STEPS = 3  # libraries tune themselves
TIMED_STEPS = 9
MEASURED_STEPS = 7  # the first does not count


class TrainedPipeline(live.LiveTraining, Protocol):
    """A pipeline that trains."""

    def train(self, batches: Sequence[Batch]) -> Logs:
        """Trains a step with the current plan."""


class LiveSchedule(LiveSearch[FoundSchedules]):
    """Trains on batches while it searches for faster schedules and tries them.

    Args:
        engine: the engine that connects the ranks.
        job: the pipeline to train.
        assembly: its stages, with the plan to begin with.
        share: the largest share of the training's time that planning may take.

    Attributes:
        plan: the fastest plan known.
    """

    def __init__(
        self, engine: Engine, job: TrainedPipeline, assembly: Assembly, *, share: float
    ) -> None:
        super().__init__(engine, job, share, "pipeline")
        self._job: TrainedPipeline = job
        self._assembly = assembly
        self._known: dict[str, PipelinePlan] = {}
        self._add(assembly.plan)
        self.plan = self._carried_out = assembly.plan
        self._seconds = 0.0  # of a step with that plan
        self._tried: set[str] = set()  # since the last drift
        self._again: set[str] = set()  # tried before that drift
        self._besides = 0.0  # seconds of a step that do not depend on the schedule
        self._times: list[float] = []

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
        self._calls += 1
        if self._is_time_to_consider():
            self._consider()
        return logs

    def _consider(self) -> bool:
        """Begins to plan if that takes at most the allowed share; returns whether it does."""
        steps = max(self._calls, self._job.left or 0)
        most = self._share * self._most(steps)[0]
        self._job.is_trying = most >= PLANNING_STEPS
        if self._job.is_trying:
            self._begin_timing()
        return self._job.is_trying

    def _begin_timing(self) -> None:
        self._times.clear()
        self._next, self._job.is_trying = self._time, True

    def _time(self, batches: Sequence[Batch]) -> Logs:
        """Times steps of the current plan, with which predictions are compared."""
        logs, seconds = timed(self._job.train, batches)
        self._times.append(seconds)
        if len(self._times) == WARM_UP_STEPS + TIMED_STEPS:
            (self._seconds,) = self._most(statistics.median(self._times[WARM_UP_STEPS:]))
            self._search_again()
        return logs

    # Searches

    def _search_again(self) -> None:
        self._calls = 0
        self._assembly.carry_out(self.plan, is_measured=True)
        self._next, self._job.is_trying = self._measure, True

    def _measure(self, batches: Sequence[Batch]) -> Logs:
        logs = self._job.train(batches)
        self._calls += 1
        if self._calls == MEASURED_STEPS:
            self._search_for(self._assembly.measured_in_steps())
        return logs

    def _search_for(self, costs: PipelineCosts) -> None:
        for name, plan in self._known.items():
            self._known[name] = replace(plan, costs=costs)
        self._take_over(self._known[self.plan.schedule.name])
        simulated = self._assembly.predicted(self.plan)
        self._besides = self._seconds - simulated
        logger.info(
            "pipeline: searching a schedule beside the training; a step takes %.1f ms with %s, as "
            "its actions say %.1f ms, and %.1f ms besides",
            self._seconds * 1e3,
            self.plan.schedule.name,
            simulated * 1e3,
            self._besides * 1e3,
        )
        schedule = self.plan.schedule
        request = ScheduleRequest(schedule.rank_of, schedule.microbatches, costs)
        self._begin_search(lambda: ScheduleSearch(request), self._job.train)

    def _take_what_was_found(self) -> None:
        found = self._found(FoundSchedules, self.plan.schedule.name) or FoundSchedules()
        for schedule in found.schedules:
            if self._assembly.computes_alike(schedule, self.plan.schedule):
                self._add(replace(self.plan, schedule=schedule))
        others = self._worth_trying()
        if others:
            self._try([self.plan, *others])
        else:
            logger.info(
                "pipeline: nothing was found that should be faster; %s stays",
                self.plan.schedule.name,
            )
            self._settle(self._candidate(self.plan))

    def _add(self, plan: PipelinePlan) -> None:
        """Adds the plan to the known ones under a unique name, unless its actions are known."""
        schedule = plan.schedule
        if any(schedule.actions == other.schedule.actions for other in self._known.values()):
            return
        name, number = schedule.name, 1
        while name in self._known:
            number += 1
            name = f"{schedule.name}_{number}"
        self._known[name] = replace(plan, schedule=replace(schedule, name=name))

    def _worth_trying(self) -> list[PipelinePlan]:
        """The untried plans worth a trial: at first those predicted nearly as fast as the
        fastest, and those tried before the step time drifted; later, those predicted to be faster
        than the current one."""
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
        """The predicted seconds of a step."""
        return self._assembly.predicted(plan) + self._besides

    # Trials

    def _try(self, plans: Sequence[PipelinePlan]) -> None:
        candidates = list(map(self._candidate, plans))
        self._tried |= {each.name for each in candidates}
        self._again -= self._tried
        self._begin_trial(candidates, self._job.train)

    def _end_trial(
        self, candidates: Sequence[Candidate], seconds: Sequence[float], fastest: Candidate
    ) -> None:
        self._seconds = seconds[candidates.index(fastest)]
        super()._end_trial(candidates, seconds, fastest)

    def _candidate(self, plan: PipelinePlan) -> Candidate:
        def run(batches: Sequence[Batch]) -> Logs:
            if self._carried_out is not plan:
                self._carry_out(plan)
            return self._job.train(batches)

        return Candidate(plan.schedule.name, run, predicted=self._predicted(plan))

    def _settle(self, fastest: Candidate) -> None:
        self._take_over(self._known[fastest.name])
        self._job.is_trying = False
        self._next = self._detecting_drift(self._job.train)

    def _take_over(self, plan: PipelinePlan) -> None:
        self.plan = plan
        self._carry_out(plan)

    def _carry_out(self, plan: PipelinePlan) -> None:
        self._carried_out = plan
        self._assembly.carry_out(plan)

    def _drifted(self) -> None:
        self._again, self._tried, self._searches = self._tried, set(), 0
        self._begin_timing()
