"""A Keras callback that records steps of a pipeline's training as a trace for Perfetto."""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ooodist.planner.pipeline.actions import COMPUTE_KINDS
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.planner.pipeline.simulate import Exchange, PipelineTimeline, Run
from ooodist.report.overlap import Overlap, replica_overlap, sums_line
from ooodist.report.pipeline.charts import pipeline_chart
from ooodist.report.pipeline.outcomes import Simulated
from ooodist.report.step_trace import Comparison, StepTrace

logger = logging.getLogger("ooodist")

WARM_UP_STEPS = 2


Spans = list[tuple[int, float, float]]  # the stage, and start and end as of ``time.time()``


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
        self.sums: Overlap | None = None
        self._left_to_warm = WARM_UP_STEPS
        self._done = 0  # steps trained so far
        self._began = 0.0
        self._seconds: list[float] = []
        self._steps: list[tuple[Spans, Spans]] = []  # this rank's actions and sums

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = time.time()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.ooodist.is_catching_up:
            return
        self._done += 1
        if self._is_finished:
            return
        if self.model.ooodist.strategy.is_trying:
            # Schedules are tried in turn: the recorded steps belong to another one.
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
        timelines = [self._timeline(plan, *step) for step in self._steps]
        if strategy.engine.rank != 0:
            return
        predicted = plan.timeline
        bubble = statistics.median(timeline.bubble for timeline in timelines)
        self.comparison = Comparison(
            f"schedule {plan.schedule.name}",
            strategy.assembly.predicted(plan),
            statistics.median(self._seconds),
            f"bubble predicted {predicted.bubble:.1%}, measured {bubble:.1%}",
        )
        if any(any(timeline.exchanges) for timeline in timelines):
            self.sums = replica_overlap(timelines)
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
            logger.info("%s", sums_line(self.sums))

    def _recorded(self) -> tuple[Spans, Spans]:
        """What this rank did in the last step: its actions and its sums."""
        strategy = self.model.ooodist.strategy.inner
        began = strategy.assembly.runtime.began
        sums = strategy.assembly.gradients.exchanges(began)
        began += time.time() - time.perf_counter()  # the ranks' own clocks have nothing in common
        ran = [
            (run.action.stage, began + run.start, began + run.end)
            for run in strategy.ran
            if run.action.kind in COMPUTE_KINDS
        ]
        return ran, [(each.stage, began + each.start, began + each.end) for each in sums]

    def _timeline(self, plan: PipelinePlan, ran: Spans, sums: Spans) -> PipelineTimeline:
        """Gathers the timeline of a step of the first pipeline; all ranks must call it."""
        ranks = plan.schedule.ranks
        ran_by_rank, sums_by_rank = self._gathered(ran)[:ranks], self._gathered(sums)[:ranks]
        first = min(spans[0][1] for spans in ran_by_rank)
        runs = []
        for actions, spans in zip(plan.schedule.actions, ran_by_rank, strict=True):
            computing = (action for action in actions if action.kind in COMPUTE_KINDS)
            pairs = zip(computing, spans, strict=False)
            runs.append(tuple(Run(a, start - first, end - first) for a, (_, start, end) in pairs))
        exchanges = tuple(
            tuple(Exchange(stage, start - first, end - first) for stage, start, end in spans)
            for spans in sums_by_rank
        )
        # When updates end is not recorded: they take what was predicted.
        return replace(plan.timeline, runs=tuple(runs), exchanges=exchanges)

    def _gathered(self, spans: Spans) -> list[Spans]:
        """Gathers the spans of all ranks, by rank; all ranks must call it."""
        engine = self.model.ooodist.engine
        numbers = engine.gather(np.array([len(spans)]))[:, 0]
        rows = np.zeros((numbers.max(), 3))
        rows[: len(spans)] = np.reshape(spans, (-1, 3))
        return [
            [(int(stage), float(start), float(end)) for stage, start, end in of_rank[:number]]
            for number, of_rank in zip(numbers, engine.gather(rows), strict=True)
        ]
