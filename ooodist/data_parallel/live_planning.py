"""Plans are made, tried and taken over while the training goes on.

::

    all ranks | default ... | measure | default ... | trial | the fastest ... | trial | ...
    rank 0    |             |         |     search  |       | search          |       |
                                  (a process beside it)

Training begins with the default, so the first step is there as early as without a plan. What
planning takes of the training's time, for measuring and tracing, is bounded: it begins once that
is a small share of the time left, or, where nobody knows how long the training is, of the time
trained so far. All ranks decide alike: each decision is made of numbers that all have.

The steps that are trained correct what was measured (:mod:`ooodist.planner.correction`), those of
the default before the first search, those of a trial before the next; there is a next one while
they were not as predicted. When steps take longer or shorter than they did, all is tried again,
and a search that is under way is given up.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.planner.correction import Observed, correct
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.named import default_plan
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.search import Limits
from ooodist.planner.data_parallel.search_process import Found, Request, SearchProcess
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.profiler.folder import Profile
from ooodist.step.launch import Batch
from ooodist.trainer.drift import DRIFTED_WINDOWS, DriftDetector
from ooodist.trainer.trial import Candidate, Trial, is_surprise, timed
from ooodist.trainer.watchdog import expect_longer, expect_usual
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")

WARM_UP_CALLS = 3  # the first is traced, and libraries tune themselves
TIMED_CALLS = 9
POLL_CALLS = 16  # how often ranks ask whether the search has ended
MEASURED_STEPS = 60  # of a profile
NETWORK_SECONDS = 40.0  # that measuring the network takes
TRACED_STEPS = 10  # one to measure, and those of the plans that are tried
MOST_SEARCHES = 3  # until steps are no longer as they were
WORTH_TRYING = 0.02  # how much faster than all that were tried another plan has to be, predicted

Logs = dict[str, Any]


class Job(Protocol):
    """What is planned for.

    Attributes:
        is_trying: it measures, waits for a search, or tries, or may do so any moment.
        left: batches of this fit that are still to come; None: nobody knows.
    """

    is_trying: bool
    left: int | None

    def is_profile_kept(self) -> bool:
        """Whether rank 0 seems to have a profile of it."""

    def profile(self, batch: Batch) -> Profile:
        """What it costs; all ranks call it. Raises UserError on all."""

    def limits(self) -> Limits:
        """Within which plans are searched."""

    def candidate(self, plan: Plan, costs: StepCosts, network: Network) -> Candidate:
        """What carries out a plan that was made from such costs."""

    def begin_trial(self, steps: int) -> None:
        """Called when launches have so many steps from now on, and candidates take turns."""

    def settle(self, candidate: Candidate) -> None:
        """Called when launches are of this candidate from now on."""


class LivePlanning:
    """Trains on batches, and finds out how to do it faster.

    Args:
        engine: of the ranks.
        job: what is planned for.
        default: as without a plan.
        accumulate: batches a step.
        share: the most that planning may take of the training's time.
        candidates: to be tried at once, rather than searched.
    """

    def __init__(
        self,
        engine: Engine,
        job: Job,
        default: Candidate,
        *,
        accumulate: int,
        share: float,
        candidates: Sequence[Candidate] = (),
    ) -> None:
        self._engine = engine
        self._job = job
        self._default = default
        self._accumulate = accumulate
        self._share = share
        job.is_trying = True
        self._current = default  # the fastest that is known
        self._known = {default.name: default, **{each.name: each for each in candidates}}
        self._profile: Profile | None = None
        self._observed: list[Observed] = []
        self._searches = 0
        self._search: SearchProcess | None = None
        self._calls = 0
        self._first_seconds = 0.0  # of the first call, with its tracing
        self._times: list[float] = []
        self._batch_seconds = 0.0  # the median of these
        self._trained_seconds = 0.0
        self._windows = DRIFTED_WINDOWS
        self._drift_detector: DriftDetector | None = None  # trains with what the last trial left
        self._next: Callable[[Sequence[Batch]], Logs] = self._begin
        if candidates:
            self._try(list(self._known.values()))

    def __call__(self, batches: Sequence[Batch]) -> Logs:
        """Trains on the batches of a call, in one launch or several, and returns the logs."""
        return self._next(batches)

    def close(self) -> None:
        """Ends the search, if one is under way."""
        if self._search is not None:
            self._search.close()
            self._search = None

    # Before planning

    def _begin(self, batches: Sequence[Batch]) -> Logs:
        logs, seconds = timed(self._default.run, batches)
        if not self._times:
            self._first_seconds = seconds
        self._times.append(seconds / len(batches))
        self._trained_seconds += seconds
        if len(self._times) == WARM_UP_CALLS + TIMED_CALLS:
            self._batch_seconds = statistics.median(self._times[WARM_UP_CALLS:])
            self._next = self._go_on
            self._consider(batches)
        return logs

    def _go_on(self, batches: Sequence[Batch]) -> Logs:
        logs = self._default.run(batches)
        self._calls += 1
        self._trained_seconds += self._batch_seconds * len(batches)
        # After twice as many calls each time: all ranks wait for each other to decide.
        if self._calls >= POLL_CALLS and self._calls.bit_count() == 1:
            self._consider(batches)
        return logs

    def _consider(self, batches: Sequence[Batch]) -> None:
        """Begins to plan if that takes little of the training's time."""
        is_kept = self._engine.rank == 0 and self._job.is_profile_kept()
        left = self._job.left
        own = [
            self._batch_seconds,
            self._first_seconds,
            float(is_kept),
            max(self._trained_seconds, self._batch_seconds * (left or 0)),
        ]
        batch, first, kept, training = self._engine.all_reduce(np.array(own), "max").tolist()
        planning = TRACED_STEPS * first
        if not kept:
            planning += MEASURED_STEPS * batch + NETWORK_SECONDS
        self._job.is_trying = planning <= self._share * training
        if self._job.is_trying:
            self._measure(batches[0])
        elif not self._calls:
            logger.info(
                "planned: the default goes on, as planning would take about %.0f s, and may take "
                "%.0f s: a share of %g (planning.share) of %s",
                planning,
                self._share * training,
                self._share,
                f"the training's {training:.0f} s" if left else "the time trained so far",
            )

    def _measure(self, batch: Batch) -> None:
        expect_longer("measuring for a plan began")
        began = time.perf_counter()
        self._next, self._job.is_trying = self._default.run, False
        try:
            profile = self._job.profile(batch)
        except UserError as error:
            logger.warning("planned: nothing can be planned, so the default stays: %s", error)
            return
        finally:
            expect_usual("measuring for a plan ended")
        logger.info("planned: measured in %.1f s", time.perf_counter() - began)
        self._profile = profile
        self._times.clear()
        self._next, self._job.is_trying = self._time_default, True

    def _time_default(self, batches: Sequence[Batch]) -> Logs:
        """What the profile is compared with."""
        logs, seconds = timed(self._default.run, batches)
        self._times.append(seconds / len(batches))
        if len(self._times) == TIMED_CALLS:
            assert self._profile is not None
            costs, network = self._profile.costs, self._profile.network
            plan = default_plan(costs, network, steps_per_execution=self._default.steps)
            self._current = self._known["default"] = replace(self._default, plan=plan)
            own = np.array([statistics.median(self._times) * self._accumulate])
            self._observed = [Observed(plan, float(self._engine.all_reduce(own, "max")[0]))]
            self._begin_search()
        return logs

    # Searches

    def _begin_search(self) -> None:
        assert self._profile is not None
        correction = correct(self._profile.costs, self._profile.network, self._observed)
        self._costs = correction.costs(self._profile.costs)
        self._network = correction.network(self._profile.network)
        simulator = Simulator(self._costs, self._network)
        for name, known in self._known.items():
            if known.plan is not None:
                seconds = simulator.step_seconds(known.plan)
                self._known[name] = replace(known, predicted=seconds)
        self._current = self._known[self._current.name]
        logger.info(
            "planned: searching beside the training; as its steps say, computing takes %.2f times "
            "as long as was measured, and exchanges %.2f times",
            correction.compute,
            correction.exchange,
        )
        if self._engine.rank == 0:
            request = Request(self._costs, self._network, self._job.limits())
            self._search = SearchProcess(request)
        self._searches += 1
        self._calls = 0
        self._next, self._job.is_trying = self._wait, True

    def _wait(self, batches: Sequence[Batch]) -> Logs:
        logs = (self._drift_detector or self._current.run)(batches)
        self._calls += 1
        # Steps that take another time meanwhile have ended the search, and a trial has begun.
        if self._next == self._wait and self._calls % POLL_CALLS == 0:
            is_done = self._search is not None and self._search.is_done()
            if self._engine.all_reduce(np.array([int(is_done)]), "max")[0]:
                self._take_plans()
        return logs

    def _take_plans(self) -> None:
        text = ""
        if self._search is not None:
            try:
                text = yaml_dataclass.dump(Found(self._search.result()))
            except (UserError, OSError) as error:
                logger.warning(
                    "planned: the search failed, so %s stays: %s", self._current.name, error
                )
            self.close()
        text = self._engine.broadcast_text(text)
        plans: list[Plan] = []
        if text:
            found = yaml_dataclass.read_text(Found, text, "of rank 0")
            plans = self._worth_trying(found.plans)
        if plans:
            new = [self._job.candidate(plan, self._costs, self._network) for plan in plans]
            self._known.update((each.name, each) for each in new)
            self._try([self._current, *new])
        elif len(self._known) > 1:
            self._settle(self._current)
        else:
            self._next, self._job.is_trying = self._default.run, False

    def _worth_trying(self, plans: Sequence[Plan]) -> list[Plan]:
        """Of what a search found, with names of their own."""
        assert self._profile is not None
        if self._searches == 1:
            return [replace(plan, model=self._profile.model) for plan in plans]
        known = [each.plan and _work(each.plan) for each in self._known.values()]
        fastest = min(each.seconds for each in self._observed)
        return [
            replace(plan, model=self._profile.model, name=f"{plan.name}_{len(self._known)}")
            for plan in plans
            if _work(plan) not in known
            and plan.predicted is not None
            and plan.predicted.step_seconds < (1 - WORTH_TRYING) * fastest
        ]

    # Trials

    def _try(self, candidates: Sequence[Candidate]) -> None:
        trial = Trial(self._engine, candidates)
        self._job.begin_trial(trial.steps)
        self._job.is_trying = True
        whole = trial.steps * self._accumulate

        def run(batches: Sequence[Batch]) -> Logs:
            if len(batches) != whole:  # the last ones, before launches grow, or of an epoch
                return self._current.run(batches)
            logs = trial(batches)
            if trial.fastest is not None:
                self._learn(candidates, trial.seconds)
                self._settle(trial.fastest)
                if is_surprise(candidates, trial.seconds) and self._may_search():
                    self._begin_search()
            return logs

        self._next = run

    def _learn(self, candidates: Sequence[Candidate], seconds: Sequence[float]) -> None:
        """What was tried has taken so many seconds a step; all that was tried before is older."""
        tried = {each.name for each in candidates}
        older = [each for each in self._observed if each.plan.name not in tried]
        newer = zip(candidates, seconds, strict=True)
        self._observed = older + [
            Observed(each.plan, took) for each, took in newer if each.plan is not None
        ]

    def _may_search(self) -> bool:
        return self._profile is not None and self._searches < MOST_SEARCHES

    def _settle(self, candidate: Candidate) -> None:
        self._current = candidate
        self._job.settle(candidate)
        self._job.is_trying = False
        self._drift_detector = DriftDetector(
            self._engine, candidate.run, self._windows, self._drifted
        )
        self._next = self._drift_detector

    def _drifted(self, before: float, now: float) -> None:
        logger.info(
            "a batch takes %.1f ms now, and took %.1f ms when plans had been tried: they are tried "
            "again",
            now * 1e3,
            before * 1e3,
        )
        self.close()
        self._windows *= 2  # what comes and goes is not followed for ever
        self._observed, self._searches = [], 1
        self._try(list(self._known.values()))


def _work(plan: Plan) -> Plan:
    """What makes one plan another than the next."""
    return replace(plan, name="", model="", predicted=None)
