"""Data parallelism with ``order="planned"``: uses the default until a faster plan is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ooodist.compat.tensorflow_runtime import is_deterministic
from ooodist.data_parallel.data_parallel_strategy import DataParallel
from ooodist.data_parallel.live_planning import LivePlanning
from ooodist.data_parallel.planning import log_wire
from ooodist.data_parallel.xla import COMPILED, compiling, setting_of
from ooodist.graph.digest import model_digest
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.plan import Plan, PlanWithCosts
from ooodist.planner.data_parallel.search import Limits
from ooodist.profiler import folder as profiles
from ooodist.profiler.folder import Profile
from ooodist.step.backward import OrderedBackward
from ooodist.step.execution import Batch, Run
from ooodist.trainer.trial import Candidate


class LiveDataParallel(DataParallel):
    """The strategy of :func:`ooodist.distribute` with ``order="planned"``.

    Attributes:
        tried: the name of the candidate that turned out to be the fastest; None until it is known.
    """

    needs_plan = False  # not before the first step

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._setting = self.training.jit_compile if self.training.may_compile else False
        self.warns_of_jit_compile = self._setting is False
        self.tried: str | None = None
        self._default_exchange = self.backward.exchange
        self._default_steps = self.steps_per_execution
        self._ways: dict[str, tuple[OrderedBackward, PlanWithCosts | None]] = {}
        self._live: LivePlanning | None = None

    def _runner(self) -> Run:
        default = OrderedBackward(self._default_exchange)
        setting = setting_of(self.model, default, self._setting)
        self._may_compile = bool(setting) and not is_deterministic()
        # Ranks compare them before the first step: all try what XLA compiles, or none does.
        self.arguments = f"{self.training.arguments} {self._may_compile}"
        if self.tried is not None:  # the model was compiled again since
            compiled = self.compiled_candidate() if self.tried == COMPILED else None
            return super()._runner() if compiled is None else compiled.run
        if self._live is not None:
            self._live.close()
        planned = [] if self.planned is None else [self._candidate(self.planned)]
        self._ways["default"] = default, None
        run = self._in_executions_of(default, self._default_steps)
        self._live = LivePlanning(
            self.engine,
            self,
            Candidate("default", run, self._default_steps),
            accumulate=self.accumulate,
            share=self.training.planning.share,
            candidates=planned,
        )
        return self._live

    def _plan_again(self, total_steps: int | None) -> None:
        """Begins with the default again, and plans while training."""
        self.tried, self.planned, self.steps_per_execution = None, None, self._default_steps

    # The interface that live planning uses

    def profile(
        self, batch: Batch, step_seconds: float | None = None, digest: str | None = None
    ) -> Profile:
        """As that of every strategy; the default's steps tell the digest."""
        steps = self._ways["default"][0].steps
        known = model_digest(steps[-1].backward) if steps else digest
        return super().profile(batch, step_seconds, known)

    def is_profile_kept(self) -> bool:
        """Whether there seems to be a profile of this model."""
        return profiles.is_kept(self.training.planning, self.model.name, self.engine)

    def is_network_kept(self) -> bool:
        """Whether there seems to be a profile of any model, with its network."""
        return profiles.is_kept(self.training.planning, None, self.engine)

    def limits(self, total_steps: int | None = None) -> Limits:
        left = None if self.left is None else max(1, self.left // self.accumulate)
        return super().limits(left)

    def candidate(self, plan: Plan, costs: StepCosts, network: Network) -> Candidate:
        """A way to train that carries out a plan made from these costs."""
        log_wire(plan, costs)
        return self._candidate(PlanWithCosts(plan, costs, network))

    def _candidate(self, planned: PlanWithCosts) -> Candidate:
        plan = planned.plan
        backward = OrderedBackward(self._default_exchange)
        backward.carry_out(plan)
        self._ways[plan.name] = backward, planned
        predicted = None if plan.predicted is None else plan.predicted.step_seconds
        run = self._in_executions_of(backward, plan.steps_per_execution)
        return Candidate(plan.name, run, plan.steps_per_execution, plan, predicted)

    def compiled_candidate(self) -> Candidate | None:
        """A way to train whose steps XLA compiles; None if that is not to be tried."""
        if not self._may_compile:
            return None
        default = OrderedBackward(self._default_exchange)
        self._ways[COMPILED] = default, None
        instead = self._in_executions_of(default, self._default_steps)
        run = self._in_executions_of(default, self._default_steps, compiled=True)
        return Candidate(COMPILED, compiling(self.model, run, instead), self._default_steps)

    def begin_trial(self, steps: int) -> None:
        """Sets the number of steps per call from now on."""
        self.steps_per_execution = steps

    def settle(self, candidate: Candidate) -> None:
        """Runs all calls with this candidate from now on."""
        self.tried = candidate.name
        self.steps_per_execution = candidate.steps
        self.backward, self.planned = self._ways[candidate.name]

    def write_plan(self, folder: Path) -> None:
        """Writes the fastest plan, once it is known, if there is one."""
        if self.tried is not None:
            super().write_plan(folder)
