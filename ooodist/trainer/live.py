"""Searches for a faster way to train while training goes on: what plans and schedules share.

::

    all ranks | as it is ... | trial | the fastest ... | steps drift: again ...
    rank 0    |    search    |
                (a process beside it)

All ranks make the same decisions, because each decision is made from numbers that all have.
"""

from __future__ import annotations

import logging
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.planner.process_beside import ProcessBeside
from ooodist.step.execution import Batch, Run
from ooodist.trainer.drift import DRIFTED_WINDOWS, DriftDetector
from ooodist.trainer.trial import Candidate, Trial, is_surprise, timed
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")

WARM_UP_CALLS = 3  # the first is traced, and libraries tune themselves
TIMED_CALLS = 9
POLL_CALLS = 16  # calls between two looks at whether the search has ended
MOST_SHAPES = 2  # of batches, where compiling is tried: XLA compiles a step for each
MOST_SEARCHES = 3  # until the step time drifts
WORTH_TRYING = 0.02  # predicted gain over all that was tried, from which another is tried, too

Logs = dict[str, Any]
Found = TypeVar("Found")


class LiveTraining(Protocol):
    """A training that is planned for.

    Attributes:
        is_trying: measures, waits for a search, or runs a trial, or may begin to.
        left: batches of this fit that are still to come; None if unknown.
    """

    is_trying: bool
    left: int | None


class LiveSearch(ABC, Generic[Found]):
    """Trains on batches, and finds out how to do it faster.

    Args:
        engine: connects the ranks.
        job: the training.
        share: the largest share of the training time that planning may take.
        subject: how log messages begin.
    """

    def __init__(self, engine: Engine, job: LiveTraining, share: float, subject: str) -> None:
        self._engine = engine
        self._job = job
        self._share = share
        self._subject = subject
        self._search: ProcessBeside[Found] | None = None
        self._searches = 0  # since the last drift
        self._calls = 0
        self._windows = DRIFTED_WINDOWS
        self._next: Callable[[Sequence[Batch]], Logs] = self._begin
        job.is_trying = True

    def __call__(self, batches: Sequence[Batch]) -> Logs:
        """Trains on the batches of a call and returns the logs."""
        return self._next(batches)

    def close(self) -> None:
        """Ends the search, if one is under way."""
        if self._search is not None:
            self._search.close()
            self._search = None

    @abstractmethod
    def _begin(self, batches: Sequence[Batch]) -> Logs:
        """Trains on the first batches."""

    @abstractmethod
    def _settle(self, fastest: Candidate) -> None:
        """Trains with this candidate from now on."""

    def _take_what_was_found(self) -> None:
        """Called when a search has ended."""

    def _search_again(self) -> None:
        """Called when a step has not taken as long as was predicted."""

    def _drifted(self) -> None:
        """Called when a batch takes another number of seconds than after the last trial."""
        raise AssertionError(f"{type(self).__name__} does not detect drift")

    def _most(self, *values: float) -> list[float]:
        """The maximum over all ranks of each value."""
        found: list[float] = self._engine.all_reduce(np.array(values, float), "max").tolist()
        return found

    def _is_time_to_consider(self) -> bool:
        """Whether to consider planning again: after twice as many calls each time, as ranks have
        to wait for each other to decide."""
        return self._calls >= POLL_CALLS and self._calls.bit_count() == 1

    def _begin_search(self, start: Callable[[], ProcessBeside[Found]], train: Run) -> None:
        """Starts a search on rank 0, and trains by ``train`` until it has ended."""
        if self._engine.rank == 0:
            self._search = start()
        self._searches += 1
        self._calls = 0

        def wait(batches: Sequence[Batch]) -> Logs:
            logs = train(batches)
            # If the step time has drifted meanwhile, the search has ended and something else began.
            if self._next is wait and self._search_has_ended():
                self._take_what_was_found()
            return logs

        self._next, self._job.is_trying = wait, True

    def _search_has_ended(self) -> bool:
        """Whether the search has ended; asked after each call, and looked up now and then."""
        self._calls += 1
        if self._calls % POLL_CALLS:
            return False
        is_done = self._search is not None and self._search.is_done()
        return bool(self._most(is_done)[0])

    def _found(self, kind: type[Found], current: str) -> Found | None:
        """What a search that has ended found, on all ranks; None if it failed."""
        text = ""
        if self._search is not None:
            try:
                text = yaml_dataclass.dump(self._search.answer())
            except (UserError, OSError) as error:
                logger.warning(
                    "%s: the search failed, so %s stays: %s", self._subject, current, error
                )
            self.close()
        text = self._engine.broadcast_text(text)
        return yaml_dataclass.read_text(kind, text, "of rank 0") if text else None

    def _begin_trial(self, candidates: Sequence[Candidate], train: Run, accumulate: int = 1) -> int:
        """Lets candidates take turns until the fastest is known; returns the steps of a call.

        ``train`` trains on calls of another length: from before the trial, or an epoch's last.
        """
        trial = Trial(self._engine, candidates)

        def run(batches: Sequence[Batch]) -> Logs:
            if len(batches) != trial.steps * accumulate:
                return train(batches)
            logs = trial(batches)
            if trial.fastest is not None:
                self._end_trial(candidates, trial.seconds, trial.fastest)
            return logs

        self._next, self._job.is_trying = run, True
        return trial.steps

    def _end_trial(
        self, candidates: Sequence[Candidate], seconds: Sequence[float], fastest: Candidate
    ) -> None:
        """Goes on with the fastest of the candidates, of which these are the seconds per step."""
        self._settle(fastest)
        if is_surprise(candidates, seconds) and self._searches < MOST_SEARCHES:
            self._search_again()

    def _detecting_drift(self, run: Run) -> DriftDetector:
        """Wraps ``run`` to call :meth:`_on_drift` when step times drift."""
        return DriftDetector(self._engine, run, self._windows, self._on_drift)

    def _on_drift(self, before: float, now: float) -> None:
        logger.info(
            "%s: a batch takes %.1f ms now, and took %.1f ms when plans had been tried: they are "
            "tried again",
            self._subject,
            now * 1e3,
            before * 1e3,
        )
        self.close()
        self._windows *= 2  # what comes and goes is not followed for ever
        self._drifted()


class LiveTrial(LiveSearch[Found]):
    """Trains as usual until trying something else takes a small share of the training's time.

    That is the time left, or the time trained so far if that is longer or the time left unknown.

    Args:
        engine, job, share, subject: see :class:`LiveSearch`.
        usual: how training begins.
    """

    def __init__(
        self, engine: Engine, job: LiveTraining, share: float, subject: str, usual: Candidate
    ) -> None:
        super().__init__(engine, job, share, subject)
        self._usual = usual
        self._first_seconds = 0.0  # of the first call, including tracing
        self._times: list[float] = []  # seconds per batch
        self._batch_seconds = 0.0  # the median of these, on the slowest rank
        self._busy: list[float] = []  # which share of each the processors have worked; 1 at most
        self._busy_share = 1.0  # the median of these, on the rank that works most
        self._trained_seconds = 0.0
        self._shapes: set[Any] = set()  # of calls before the trial

    @abstractmethod
    def _cost(self, first: float, batch: float) -> float:
        """How many seconds the trial takes; all ranks call it and get the same.

        Args:
            first: seconds of the first call, on the slowest rank.
            batch: seconds per batch there.
        """

    def _allowed_share(self) -> float:
        """The share of the training's time that the trial may take; the same on all ranks."""
        return self._share

    @abstractmethod
    def _try_on(self, batches: Sequence[Batch]) -> None:
        """Begins the trial, behind a call that has trained on these batches."""

    @abstractmethod
    def _is_too_short(self, cost: float, training: float) -> None:
        """Called once if the trial is put off: its seconds, and those of the training."""

    def _begin(self, batches: Sequence[Batch]) -> Logs:
        before = time.process_time()
        logs, seconds = timed(self._usual.run, batches)
        self._busy.append(min(1.0, (time.process_time() - before) / max(seconds, 1e-9)))
        if not self._times:
            self._first_seconds = seconds
        self._times.append(seconds / len(batches))
        self._trained_seconds += seconds
        self._note_shapes(batches)
        if len(self._times) == WARM_UP_CALLS + TIMED_CALLS:
            self._batch_seconds = statistics.median(self._times[WARM_UP_CALLS:])
            self._next = self._go_on
            self._consider(batches)
        return logs

    def _go_on(self, batches: Sequence[Batch]) -> Logs:
        logs = self._usual.run(batches)
        self._calls += 1
        self._trained_seconds += self._batch_seconds * len(batches)
        self._note_shapes(batches)
        if self._is_time_to_consider():
            self._consider(batches)
        return logs

    def _consider(self, batches: Sequence[Batch]) -> None:
        self._batch_seconds, first, training, self._busy_share = self._most(
            self._batch_seconds,
            self._first_seconds,
            max(self._trained_seconds, self._batch_seconds * (self._job.left or 0)),
            statistics.median(self._busy[WARM_UP_CALLS:]),
        )
        cost = self._cost(first, self._batch_seconds)
        self._job.is_trying = cost <= self._allowed_share() * training
        if self._job.is_trying:
            self._try_on(batches)
        elif not self._calls:
            self._is_too_short(cost, training)

    def _note_shapes(self, batches: Sequence[Batch]) -> None:
        leaves = tf.nest.flatten(batches)
        self._shapes.add(tuple(getattr(leaf, "shape", None) for leaf in leaves))

    def _may_compile(self) -> bool:
        """Whether batches have few enough shapes to compile a step for each; all ranks ask."""
        return self._most(len(self._shapes))[0] <= MOST_SHAPES
