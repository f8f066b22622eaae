"""Searches for plans, tries them and adopts the fastest while the training goes on.

::

    all ranks | default ... | measure | default ... | trial | the fastest ... | trial | ...
    rank 0    |             |         |     search  |       | search          |       |
                                  (a process beside it)

Training begins with the default plan, so planning does not delay the first step. The time that
planning takes from the training, for measuring and tracing, is bounded: planning begins once
measuring and one plan would take a small share of the time left, or of the time trained so far if
that is longer or the time left unknown. More plans are traced as far as that share goes. All ranks
decide alike, as decisions depend only on numbers that all share.

The times of training steps correct the measured costs (:mod:`ooodist.planner.correction`): those of
the default before the first search, those of a trial before the next, which follows as long as
they were not as predicted. When the step time drifts, all known plans are tried again, and a
search in progress is abandoned.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.planner.correction import Observed, correct
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.named import default_plan
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.search import Limits, as_sent, costs_as_sent
from ooodist.planner.data_parallel.search_process import Found, Request, SearchProcess
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.profiler.folder import Profile
from ooodist.step.execution import Batch
from ooodist.trainer import live
from ooodist.trainer.drift import DriftDetector
from ooodist.trainer.live import TIMED_CALLS, WORTH_TRYING, LiveTrial, Logs
from ooodist.trainer.trial import Candidate, timed
from ooodist.trainer.watchdog import expect_longer, expect_usual

logger = logging.getLogger("ooodist")

MEASURED_STEPS = 20  # steps that profiling takes
NETWORK_SECONDS = 8.0  # time that measuring the network takes
CHECK_SECONDS = 1.0  # and to see whether a stored one still holds
EVALUATIONS = 1000  # of a search, for each second that planning may take; some 0.1 ms each
SHARE_OF_WAITING = 0.1  # that planning may take where fewer bytes may save most of it


class PlannedTraining(live.LiveTraining, Protocol):
    """The training for which plans are made."""

    def is_profile_kept(self) -> bool:
        """Whether rank 0 seems to have a stored profile of the job."""

    def is_network_kept(self) -> bool:
        """Whether rank 0 seems to have a stored profile of another job with the same network."""

    def profile(self, batch: Batch, *, step_seconds: float) -> Profile:
        """Measures the job's costs; all ranks must call it. Raises UserError on all ranks.

        A stored profile counts only if a step has taken about ``step_seconds`` then, too.
        """

    def limits(self) -> Limits:
        """The limits of the search for plans."""

    def candidate(self, plan: Plan, costs: StepCosts, network: Network) -> Candidate:
        """A candidate that runs a plan made from these costs."""

    def compiled_candidate(self) -> Candidate | None:
        """A candidate whose steps XLA compiles; None if that is not to be tried."""

    def begin_trial(self, steps: int) -> None:
        """Prepares a trial, in which candidates take turns and each launch has ``steps`` steps."""

    def settle(self, candidate: Candidate) -> None:
        """Makes all launches from now on use this candidate."""


class LivePlanning(LiveTrial[Found]):
    """Trains on batches while it searches for faster plans and tries them.

    Args:
        engine: the engine that connects the ranks.
        job: the training to plan for.
        default: the candidate that trains without a plan.
        accumulate: batches per step.
        share: the largest share of the training's time that planning may take.
        candidates: candidates to try at once, instead of a search.
    """

    def __init__(
        self,
        engine: Engine,
        job: PlannedTraining,
        default: Candidate,
        *,
        accumulate: int,
        share: float,
        candidates: Sequence[Candidate] = (),
    ) -> None:
        super().__init__(engine, job, share, "planned", default)
        self._job: PlannedTraining = job
        self._accumulate = accumulate
        self._current = default  # the fastest one known
        self._known = {default.name: default, **{each.name: each for each in candidates}}
        self._profile: Profile | None = None
        self._started = time.perf_counter()
        self._trace_seconds = 0.0  # of a step; the same on all ranks, as the next two
        self._taken_seconds = 0.0  # of the training, by planning
        self._training_seconds = 0.0  # as far as they were known when planning began
        self._observed: list[Observed] = []
        self._drift_detector: DriftDetector | None = None  # trains with the last trial's winner
        if candidates:
            self._try(list(self._known.values()))

    # Before planning

    def _cost(self, first: float, batch: float) -> float:
        is_kept, has_network = self._most(
            *(
                self._engine.rank == 0 and is_there()
                for is_there in (self._job.is_profile_kept, self._job.is_network_kept)
            )
        )
        waited = self._waited_share() * batch  # neither tracing nor measuring waits for exchanges
        self._trace_seconds = max((first - waited) / self._usual.steps, 1e-9)
        planning = self._least_steps() * self._trace_seconds  # of one plan
        network = CHECK_SECONDS if is_kept or has_network else NETWORK_SECONDS
        if is_kept:
            return planning + network
        return planning + self._trace_seconds + MEASURED_STEPS * (batch - waited) + network

    def _affordable(self) -> int:
        """How many more steps of plans may be traced; all ranks ask, and get the same."""
        (training,) = self._most(
            max(time.perf_counter() - self._started, self._batch_seconds * (self._job.left or 0))
        )
        self._training_seconds = max(self._training_seconds, training)
        left = self._allowed_share() * self._training_seconds - self._taken_seconds
        return max(0, int(left / self._trace_seconds))

    def _least_steps(self) -> int:
        """How many steps any plan has in a call."""
        return self._job.limits().steps_per_execution or 1

    def _allowed_share(self) -> float:
        return max(self._share, SHARE_OF_WAITING * self._waited_share())

    def _waited_share(self) -> float:
        """The share of a step in which no rank computes, if a plan may send fewer bytes; else 0.

        Some engines wait without rest; there it is 0.
        """
        return 1 - self._busy_share if self._job.limits().only_exposed else 0.0

    def _is_too_short(self, cost: float, training: float) -> None:
        share = self._allowed_share()
        logger.info(
            "planned: the default goes on, as planning would take about %.0f s, and may take "
            "%.0f s: a share of %.2g (%s) of %s",
            cost,
            share * training,
            share,
            "planning.share" if share == self._share else "a tenth of what waits for the network",
            f"the training's {training:.0f} s" if self._job.left else "the time trained so far",
        )

    def _try_on(self, batches: Sequence[Batch]) -> None:
        self._affordable()
        self._measure(batches[0])

    def _measure(self, batch: Batch) -> None:
        expect_longer("measuring for a plan began")
        began = time.perf_counter()
        self._next, self._job.is_trying = self._usual.run, False
        try:
            step_seconds = self._batch_seconds * self._accumulate
            profile = self._job.profile(batch, step_seconds=step_seconds)
        except UserError as error:
            logger.warning("planned: nothing can be planned, so the default stays: %s", error)
            return
        finally:
            expect_usual("measuring for a plan ended")
        (self._taken_seconds,) = self._most(time.perf_counter() - began)
        logger.info("planned: measured in %.1f s", self._taken_seconds)
        self._profile = profile
        self._times.clear()
        self._next, self._job.is_trying = self._time_default, True

    def _time_default(self, batches: Sequence[Batch]) -> Logs:
        """Times steps of the default, with which the profile is compared."""
        logs, seconds = timed(self._usual.run, batches)
        self._times.append(seconds / len(batches))
        if len(self._times) == TIMED_CALLS:
            assert self._profile is not None
            costs, network = self._profile.costs, self._profile.network
            plan = self._default_plan(costs, network)
            self._current = self._known["default"] = replace(self._usual, plan=plan)
            (seconds,) = self._most(statistics.median(self._times) * self._accumulate)
            self._observed = [Observed(plan, seconds)]
            self._search_again()
        return logs

    def _default_plan(self, costs: StepCosts, network: Network) -> Plan:
        """What the default does, as a plan."""
        limits, steps = self._job.limits(), self._usual.steps
        if limits.only_exposed:
            return default_plan(costs, network, steps_per_execution=steps)
        sent = costs_as_sent(costs, network, limits)
        return as_sent(default_plan(*sent, steps_per_execution=steps), costs, limits)

    # Searches

    def _search_again(self) -> None:
        if self._profile is None:
            return
        most = self._affordable()
        if self._searches and most < self._least_steps():
            return
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
            "as long as was measured, exchanges %.2f times, and a call's start and end %.2f times",
            correction.compute,
            correction.exchange,
            correction.compute * correction.call,
        )
        limits = self._job.limits()
        evaluations = int(EVALUATIONS * max(1.0, self._allowed_share() * self._training_seconds))
        limits = replace(
            limits,
            max_steps_per_execution=max(1, min(limits.max_steps_per_execution, most)),
            evaluations=min(limits.evaluations, evaluations),
        )
        request = Request(self._costs, self._network, limits)
        train = self._drift_detector or self._current.run
        self._begin_search(lambda: SearchProcess(request), train)

    def _take_what_was_found(self) -> None:
        found = self._found(Found, self._current.name)
        plans = [] if found is None else self._worth_trying(found.plans)
        most = self._affordable()
        new: list[Candidate] = []
        for plan in plans:
            if new and plan.steps_per_execution > most:
                logger.info(
                    "planned: %d of %d plans are tried, as tracing the next would take more than "
                    "planning.share allows",
                    len(new),
                    len(plans),
                )
                break
            new.append(self._job.candidate(plan, self._costs, self._network))
            most -= plan.steps_per_execution
            self._taken_seconds += plan.steps_per_execution * self._trace_seconds
        compiled = self._job.compiled_candidate() if most > 0 else None
        if compiled is not None and compiled.name not in self._known and self._may_compile():
            new.append(compiled)
        if new:
            self._known.update((each.name, each) for each in new)
            self._try([self._current, *new])
        elif len(self._known) > 1:
            self._settle(self._current)
        else:
            self._next, self._job.is_trying = self._usual.run, False

    def _worth_trying(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans found by a search that are worth a trial, with unique names."""
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
        steps = self._begin_trial(candidates, self._current.run, self._accumulate)
        self._job.begin_trial(steps)

    def _end_trial(
        self, candidates: Sequence[Candidate], seconds: Sequence[float], fastest: Candidate
    ) -> None:
        tried = {each.name for each in candidates}
        older = [each for each in self._observed if each.plan.name not in tried]
        newer = zip(candidates, seconds, strict=True)
        self._observed = older + [
            Observed(each.plan, took) for each, took in newer if each.plan is not None
        ]
        super()._end_trial(candidates, seconds, fastest)

    def _settle(self, fastest: Candidate) -> None:
        self._current = fastest
        self._job.settle(fastest)
        self._job.is_trying = False
        self._next = self._drift_detector = self._detecting_drift(fastest.run)

    def _drifted(self) -> None:
        self._observed, self._searches = [], 1
        self._try(list(self._known.values()))


def _work(plan: Plan) -> Plan:
    """The plan without its names and prediction, to compare what it does."""
    return replace(plan, name="", model="", predicted=None)
