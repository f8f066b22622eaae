"""A Keras callback that records some steps of a training for Perfetto."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.profiler.recording.timeline import make_timeline
from ooodist.profiler.recording.xplane import read_op_events, start_recording
from ooodist.report.data_parallel.charts import recorded
from ooodist.report.data_parallel.comparison import RecordedPlan, recorded_plan
from ooodist.report.overlap import measure_overlap
from ooodist.report.step_trace import StepTrace
from ooodist.util.quantity import counted

logger = logging.getLogger("ooodist")

WARM_UP_LAUNCHES = 2
MEASURED_LAUNCHES = 5


@dataclass(frozen=True)
class TraceSummary:
    """A summary of the recording; times are means over the recorded steps, on rank 0.

    Attributes:
        path: the file for https://ui.perfetto.dev.
        num_steps: how many steps it shows.
        step_seconds: seconds of a step, as fit ran it while recording.
        exchange_seconds: seconds of a step in which at least one exchange was in flight.
        hidden_share: share of ``exchange_seconds`` in which a unit computed as well, 0 to 1.
    """

    path: Path
    num_steps: int
    step_seconds: float
    exchange_seconds: float
    hidden_share: float

    def __str__(self) -> str:
        text = (
            f"trace: {self.path} (open it in https://ui.perfetto.dev) shows "
            f"{counted(self.num_steps, 'step')} of {self.step_seconds * 1e3:.1f} ms"
        )
        if not self.exchange_seconds:
            return f"{text}, no exchange"
        return (
            f"{text}, exchange {self.exchange_seconds * 1e3:.1f} ms, "
            f"{self.hidden_share:.0%} of it hidden behind computation"
        )


class Trace(StepTrace):
    """Records steps of a model that was given to :func:`ooodist.distribute`, on rank 0.

    Recording starts before a call, once ``WARM_UP_LAUNCHES`` calls have run and the last one needed
    no tracing. It ends when calls with at least ``num_steps`` steps in total have run, or before an
    evaluation. It costs some microseconds per op while it lasts, and nothing before and after.
    Errors in it are logged as warnings and do not end the training.

    If the model has a plan, the file shows the prediction beside the recording. The next
    ``MEASURED_LAUNCHES`` full calls, which run without the profiler, tell what a step takes.

    Args:
        output: the folder for ``trace.json.gz``; made if needed.
        num_steps: how many steps to record. Calls are recorded as a whole.

    Attributes:
        summary: what was recorded; None until then, and always on other ranks.
    """

    def __init__(self, output: Path, num_steps: int) -> None:
        super().__init__(output, num_steps)
        self.summary: TraceSummary | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # while recording
        self._warned = False
        self._launches_done = 0
        self._steps_done = 0
        self._is_warm = False
        self._steps_before = 0  # number of steps before the recording
        # Steps and seconds of each call, without those that were traced:
        self._recorded: list[tuple[int, float]] = []
        self._after: list[tuple[int, float]] = []  # full ones, without the profiler
        self._to_compare: RecordedPlan | None = None  # between the recording and the comparison
        # Of the current call:
        self._first_batch = 0
        self._num_traced = 0
        self._began = 0.0

    @property
    def _strategy(self) -> Any:
        return self.model.ooodist.strategy

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_finished = self._is_finished or self.model.ooodist.engine.rank != 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._is_finished or self.model.ooodist.steps_ahead:  # trained by an earlier call
            return
        is_warm = self._is_warm and self._launches_done >= WARM_UP_LAUNCHES
        is_settled = is_warm and not self._strategy.is_trying
        if is_settled and self._folder is None and self._to_compare is None:
            self._start()
        self._first_batch = batch
        self._num_traced = len(self._strategy.inner.backward.steps)
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        fit = self.model.ooodist
        if self._is_finished or fit.steps_ahead or fit.is_catching_up:  # it goes on, or did nothing
            return
        keras.tree.map_structure(float, logs or {})  # waits for the device
        seconds = time.perf_counter() - self._began
        # Keras passes the last batch of a full call, even if the epoch ends before that.
        end = min(batch + 1, self.params.get("steps") or batch + 1)
        steps = (end - self._first_batch) // self._strategy.accumulate
        self._launches_done += 1
        self._steps_done += steps
        self._is_warm = self._num_traced == len(self._strategy.inner.backward.steps)
        if self._folder is not None:
            if self._is_warm:
                self._recorded.append((steps, seconds))
            if self._steps_recorded() >= self._num_steps:
                self._stop()
        elif self._to_compare is not None:
            if self._is_warm and steps == self._strategy.steps_per_execution:
                self._after.append((steps, seconds))
            if len(self._after) == MEASURED_LAUNCHES:
                self._compare(self._to_compare)

    def on_test_begin(self, logs: Any = None) -> None:
        self._stop_early("an evaluation began")

    def on_train_end(self, logs: Any = None) -> None:
        self._stop_early("the training ended")
        if self._to_compare is not None:
            self._compare(self._to_compare)
        if not self._is_finished:
            self._warn_of_nothing(
                f"{self._launches_done} calls, the first {WARM_UP_LAUNCHES} or more (as long as "
                "functions are traced, and a plan is tried) warm up"
            )

    def _steps_recorded(self) -> int:
        return self._steps_done - self._steps_before

    def _start(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="ooodist-trace-")
        try:
            start_recording(Path(folder.name))
        except tf.errors.OpError as error:  # another callback is using it
            folder.cleanup()
            if not self._warned:
                logger.warning(
                    "trace: TensorFlow's profiler does not start (%s); if TensorBoard's "
                    "profile_batch uses it, recording begins when that has ended",
                    error.message,
                )
                self._warned = True
        else:
            self._folder = folder
            self._steps_before = self._steps_done

    def _stop_early(self, why: str) -> None:
        if self._folder is not None:
            logger.warning(
                "trace: %s after %d of the %d steps to record",
                why,
                self._steps_recorded(),
                self._num_steps,
            )
            self._stop()

    def _stop(self) -> None:
        assert self._folder is not None
        with self._folder as folder:
            self._folder = None
            self._is_finished = True
            try:
                tf.profiler.experimental.stop()
                self.summary = self._summarized(Path(folder))
            except (UserError, OSError, tf.errors.OpError) as error:
                logger.warning("trace: not written: %s", error)
            else:
                logger.info("%s", self.summary)
                self._is_finished = self._to_compare is None

    def _summarized(self, folder: Path) -> TraceSummary:
        steps = self._strategy.inner.backward.steps
        timeline = make_timeline(read_op_events(folder), steps)
        if not timeline.num_steps:
            raise UserError(
                "the profiler's recording holds no traced step (run_eagerly and jit_compile leave "
                "none)"
            )
        first_step = self._steps_before + 1
        to_compare = recorded_plan(self._strategy.inner.planned, timeline)
        charts = [recorded(timeline, first_step=first_step, name="measured, rank 0")]
        charts += to_compare.predicted_charts(first_step=first_step) if to_compare else []
        self._write(charts)
        self._to_compare = to_compare
        overlap = measure_overlap(timeline)
        return TraceSummary(
            path=self._path,
            num_steps=timeline.num_steps,
            step_seconds=sum(seconds for _, seconds in self._recorded)
            / max(sum(steps for steps, _ in self._recorded), 1),
            exchange_seconds=overlap.exchange / timeline.num_steps,
            hidden_share=overlap.share,
        )

    def _compare(self, recorded: RecordedPlan) -> None:
        self._to_compare = None
        self._is_finished = True
        full = [item for item in self._recorded if item[0] == self._strategy.steps_per_execution]
        launches = self._after or full
        if launches:
            median = statistics.median(seconds / steps for steps, seconds in launches)
            note = "" if self._after else " (while it was recorded)"
            self.comparison = recorded.compare(median, note)
            logger.info("%s", self.comparison)
