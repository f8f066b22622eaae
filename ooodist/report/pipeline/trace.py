"""A Keras callback that records steps of a pipeline's training as a trace for Perfetto."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import COMPUTE_KINDS
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.planner.pipeline.simulate import Exchange, MeasuredRun, PipelineTimeline, Run
from ooodist.report.data_parallel.overlap import Overlap
from ooodist.report.data_parallel.trace import FILE_NAME
from ooodist.report.perfetto import write_perfetto
from ooodist.report.pipeline import overlap
from ooodist.report.pipeline.charts import pipeline_chart
from ooodist.report.pipeline.outcomes import Simulated

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
class PipelineComparison:
    """A schedule's seconds per step and bubble (share of waiting), predicted and measured."""

    schedule: str
    predicted_seconds: float
    measured_seconds: float
    predicted_bubble: float
    measured_bubble: float

    @property
    def error(self) -> float:
        """The prediction's relative error; negative if the predicted time is too short."""
        return self.predicted_seconds / self.measured_seconds - 1

    def __str__(self) -> str:
        return (
            f"schedule {self.schedule}: predicted {self.predicted_seconds * 1e3:.1f} ms a step, "
            f"measured {self.measured_seconds * 1e3:.1f} ms (error {self.error:+.1%}); bubble "
            f"predicted {self.predicted_bubble:.1%}, measured {self.measured_bubble:.1%}"
        )


class PipelineTrace(keras.callbacks.Callback):
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
        super().__init__()
        if num_steps < 1:
            raise UserError(f"report.trace is {num_steps}; record at least 1 step, or set it to 0")
        self.comparison: PipelineComparison | None = None
        self.sums: Overlap | None = None
        self._path = Path(output) / FILE_NAME
        self._num_steps = num_steps
        self._left_to_warm = WARM_UP_STEPS
        self._done = 0  # steps trained so far
        self._is_finished = False
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
            logger.warning(
                "trace: nothing was recorded: the training ran %d steps, which are too few for %d "
                "after %d that warm up and those in which schedules are tried; train "
                "longer, or set report.trace to 0",
                self._done,
                self._num_steps,
                WARM_UP_STEPS,
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
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_perfetto(charts, self._path)
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
        engine = self.model.ooodist.engine
        computed = [each for each in step.ran if each.action.kind in COMPUTE_KINDS]
        most = max(len(actions) for actions in plan.schedule.actions)
        times = np.zeros((engine.size, 2, most))
        own = times[engine.rank]
        for number, each in enumerate(computed):
            own[:, number] = step.began + each.start, step.began + each.end
        times = engine.all_reduce(times, "sum")
        first = min(rows[0][0] for rows in times[: plan.schedule.ranks])
        runs = []
        for actions, rows in zip(plan.schedule.actions, times, strict=False):
            computing = [action for action in actions if action.kind in COMPUTE_KINDS]
            spans = zip(computing, *(row - first for row in rows), strict=False)
            runs.append(tuple(Run(a, float(start), float(end)) for a, start, end in spans))
        sums = self._sums_of_all(step)[: plan.schedule.ranks]
        exchanges = tuple(
            tuple(Exchange(stage, start - first, end - first) for stage, start, end in of_rank)
            for of_rank in sums
        )
        # When updates end is not recorded: they take what was predicted.
        return replace(plan.timeline, runs=tuple(runs), exchanges=exchanges)

    def _sums_of_all(self, step: RecordedStep) -> list[list[tuple[int, float, float]]]:
        """Gathers by rank the stage, start and end of each sum; all ranks must call it."""
        engine = self.model.ooodist.engine
        numbers = engine.gather(np.array([len(step.sums)]))[:, 0]
        own = np.zeros((numbers.max(), 3))
        for place, each in enumerate(step.sums):
            own[place] = each.stage, step.began + each.start, step.began + each.end
        return [
            [(int(stage), float(start), float(end)) for stage, start, end in rows[:number]]
            for number, rows in zip(numbers, engine.gather(own), strict=True)
        ]
