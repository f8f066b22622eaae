"""A Keras callback that records steps of a pipeline's training as a trace for Perfetto."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ooodist.planner.pipeline.actions import COMPUTE_KINDS
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.planner.pipeline.simulate import Exchange, MeasuredRun, PipelineTimeline, Run
from ooodist.report.data_parallel.overlap import Overlap
from ooodist.report.pipeline import overlap
from ooodist.report.pipeline.charts import pipeline_chart
from ooodist.report.pipeline.outcomes import Simulated
from ooodist.report.step_trace import StepComparison, StepTrace

logger = logging.getLogger("ooodist")

WARM_UP_STEPS = 2


@dataclass(frozen=True)
class RecordedStep:
    """What this rank did in a step: its actions and its sums, in seconds from ``began``, which is
    ``time.time()``."""

    began: float
    ran: Sequence[MeasuredRun]
    sums: Sequence[Exchange]


@dataclass(frozen=True)
class PipelineComparison(StepComparison):
    """A schedule's seconds per step and bubble (share of waiting), predicted and measured."""

    predicted_bubble: float
    measured_bubble: float

    def __str__(self) -> str:
        return (
            f"schedule {self.line()}; bubble "
            f"predicted {self.predicted_bubble:.1%}, measured {self.measured_bubble:.1%}"
        )


class PipelineTrace(StepTrace):
    """Records steps of a model that was given to :func:`ooodist.pipelined`.

    All ranks need the callback; rank 0 writes what the ranks of its pipeline did in ``num_steps``
    steps, beside the prediction, as ``trace.json.gz``. Clocks of hosts are assumed synchronized.

    Args:
        output: the folder for the file.
        num_steps: the number of steps to record.

    Attributes:
        comparison: predicted and measured values; None until they are known, and on other ranks.
        sums: the measured sums over replicas of a rank in a step; None also if there are none.

    Raises:
        UserError: ``num_steps`` is less than 1.
    """

    def __init__(self, output: Path, num_steps: int) -> None:
        super().__init__(output, num_steps)
        self.comparison: PipelineComparison | None = None
        self.sums: Overlap | None = None
        self._left_to_warm = WARM_UP_STEPS
        self._done = 0  # steps trained so far
        self._began = 0.0
        self._seconds: list[float] = []
        self._steps: list[RecordedStep] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = time.time()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.ooodist.is_catching_up:
            return
        self._done += 1
        if self._is_finished:
            return
        if (
            self.model.ooodist.strategy.is_trying
        ):  # schedules are being tried in turn: the recorded steps belong to another one
            self._left_to_warm = WARM_UP_STEPS
            self._seconds.clear()
            self._steps.clear()
        elif self._left_to_warm:
            self._left_to_warm -= 1
        else:
            self._seconds.append(time.time() - self._began)
            self._steps.append(self._recorded())
            if len(self._steps) == self._num_steps:
                self._is_finished = True
                self._finish()

    def on_train_end(self, logs: Any = None) -> None:
        if not self._is_finished and self.model.ooodist.engine.rank == 0:
            self._warn_of_nothing(
                f"{self._done} steps, which are too few for {self._num_steps} after "
                f"{WARM_UP_STEPS} that warm up and those in which schedules are tried"
            )

    def _finish(self) -> None:
        strategy = self.model.ooodist.strategy.inner
        plan: PipelinePlan = strategy.assembly.plan
        timelines = [self._timeline(plan, step) for step in self._steps]
        if strategy.engine.rank != 0:
            return
        predicted = plan.timeline
        self.comparison = PipelineComparison(
            plan.schedule.name,
            strategy.predicted(plan),
            statistics.median(self._seconds),
            predicted.bubble,
            statistics.median(timeline.bubble for timeline in timelines),
        )
        if any(any(timeline.exchanges) for timeline in timelines):
            self.sums = overlap.replica_overlap(timelines)
        shown = [("predicted", predicted)]
        first = self._done - len(timelines) + 1
        shown += [(f"measured, step {n}", t) for n, t in enumerate(timelines, first)]
        charts = [pipeline_chart(Simulated(plan, timeline), name) for name, timeline in shown]
        try:
            self._write(charts)
        except OSError as error:
            logger.warning("report.trace: %s cannot be written: %s", self._path, error)
            return
        logger.info("trace: %s (open it in https://ui.perfetto.dev)", self._path)
        logger.info("%s", self.comparison)
        if self.sums is not None:
            logger.info("%s", overlap.line(self.sums))

    def _recorded(self) -> RecordedStep:
        strategy = self.model.ooodist.strategy.inner
        began = strategy.assembly.runtime.began
        to_clock = time.time() - time.perf_counter()  # the ranks' own clocks have nothing in common
        sums = strategy.assembly.gradients.exchanges(began)
        return RecordedStep(began + to_clock, strategy.ran, sums)

    def _timeline(self, plan: PipelinePlan, step: RecordedStep) -> PipelineTimeline:
        """Gathers the timeline of a step of the first pipeline; all ranks must call it."""
        computed = [
            (each.action.stage, each.start, each.end)
            for each in step.ran
            if each.action.kind in COMPUTE_KINDS
        ]
        summed = [(each.stage, each.start, each.end) for each in step.sums]
        ran, sums = self._gathered(computed, step.began), self._gathered(summed, step.began)
        first = min(spans[0][1] for spans in ran[: plan.schedule.ranks])
        runs = []
        for actions, spans in zip(plan.schedule.actions, ran, strict=False):
            computing = [action for action in actions if action.kind in COMPUTE_KINDS]
            pairs = zip(computing, spans, strict=False)
            runs.append(tuple(Run(a, start - first, end - first) for a, (_, start, end) in pairs))
        exchanges = tuple(
            tuple(Exchange(stage, start - first, end - first) for stage, start, end in spans)
            for spans in sums[: plan.schedule.ranks]
        )
        # When updates end is not recorded: they take what was predicted.
        return replace(plan.timeline, runs=tuple(runs), exchanges=exchanges)

    def _gathered(
        self, spans: Sequence[tuple[int, float, float]], began: float
    ) -> list[list[tuple[int, float, float]]]:
        """Gathers by rank the stage, start and end of each span; all ranks must call it.

        Starts and ends are from ``began`` before, and then ``time.time()``.
        """
        engine = self.model.ooodist.engine
        numbers = engine.gather(np.array([len(spans)]))[:, 0]
        own = np.zeros((numbers.max(), 3))
        for place, (stage, start, end) in enumerate(spans):
            own[place] = stage, began + start, began + end
        return [
            [(int(stage), float(start), float(end)) for stage, start, end in rows[:number]]
            for number, rows in zip(numbers, engine.gather(own), strict=True)
        ]
