"""Trains selections in a pipeline.

Stages before the first with a selected tensor only run forward, and no gradient is sent to them;
the others compute the dW of what is selected. Each selection has a schedule of its own, and stages
that it changes are cut again for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat.keras_deferred import has_value
from ooodist.elastic.controller import Mask, Measure
from ooodist.elastic.cost_model import CostModel
from ooodist.elastic.importance import Measured, Totals
from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.elastic.pipeline_cost_model import PipelineCostModel
from ooodist.elastic.stage_units import measure_stage_units
from ooodist.pipeline.assembly import Assembly
from ooodist.pipeline.cutting import first_trained
from ooodist.pipeline.holding import deliver
from ooodist.pipeline.pipeline_strategy import Pipeline
from ooodist.pipeline.planning import plan_schedule
from ooodist.planner.costs import StepCosts
from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.plan import PipelinePlan, reschedule
from ooodist.profiler.state import preserved
from ooodist.step.backward import names_by_id
from ooodist.step.execution import Batch, Run

logger = logging.getLogger("ooodist")


class SelectivePipeline:
    """Trains a selection in a pipeline.

    Args:
        inner: made without swapping schedules, as each selection has a schedule of its own.
    """

    begins_in_full = False  # its stages are measured in any case

    def __init__(self, inner: Pipeline) -> None:
        self.inner = inner
        self._carried_out = ""  # digest of the selection that stages and schedule were made for
        self._plans: dict[str, PipelinePlan] = {}  # by digest of the selection

    @property
    def needs_plan(self) -> bool:
        """Whether there are no stages yet."""
        return self.inner.needs_plan

    @property
    def exchanges(self) -> bool:
        """Whether there are several pipelines."""
        return self.inner.ranks.replicas > 1

    @property
    def _assembly(self) -> Assembly:
        """The assembly of the pipeline, which must have been planned."""
        assert self.inner.assembly is not None
        return self.inner.assembly

    def plan(
        self, batch: Batch, total_steps: int | None
    ) -> tuple[CostModel, OptimizerState, Measure]:
        """Splits the model, and measures the costs of selections.

        Raises:
            UserError: the model cannot be split, or does not fit into the memory limit.
        """
        inner = self.inner
        inner.plan(batch, total_steps)
        self._full = self._assembly.plan
        self._plans.clear()
        self._carried_out = ""
        with inner.engine.agreed():
            self._optimizer_state = OptimizerState(inner.model)
        units = self._measured_units(self._assembly)
        with inner.engine.agreed():
            self._cost_model = PipelineCostModel(
                units, self._full.costs, self._full.schedule, self._schedule_for
            )
            probe = _Probe(inner.model, self._assembly, self._optimizer_state, self._train_all)
        return self._cost_model, self._optimizer_state, probe

    def _measured_units(self, assembly: Assembly) -> StepCosts:
        """Measures units; each rank of the first pipeline measures those of its stages."""
        engine, own = self.inner.engine, assembly.works if self.inner.ranks.replica == 0 else ()
        return measure_stage_units(assembly.splitter, self._full.parts, own, engine)

    def _schedule_for(self, costs: PipelineCosts, first: int) -> Schedule:
        return reschedule(self._full, self.inner.parallel.schedule, costs, first).schedule

    # Training

    def select(self, mask: Mask) -> None:
        """Trains only these weights from now on."""
        if self._carried_out != mask.digest:
            self._carry_out(mask)
            self._carried_out = mask.digest

    def _carry_out(self, mask: Mask) -> None:
        """Trains only the selected weights, with a schedule made for them."""
        assembly, cost_model = self._assembly, self._cost_model
        weights, digest = mask.weights, mask.digest
        first = first_trained(assembly.stages, weights)
        if digest not in self._plans:
            costs = cost_model.masked(cost_model.choice.numbers(weights))
            self._plans[digest] = plan_schedule(
                self._full, costs, self.inner.parallel, self.inner.engine, first
            )
        plan = self._plans[digest]
        assembly.select(weights, self._optimizer_state.counting)
        assembly.carry_out(plan)
        logger.info(
            "elastic: %s; schedule %s, predicted %.1f ms a step",
            f"stages before {first} only run forward" if first else "all stages train",
            plan.schedule.name,
            assembly.predicted(plan) * 1e3,
        )

    def _train_all(self) -> None:
        """Trains all weights, as before the first selection, until :meth:`_carry_out`."""
        self._assembly.select(None, self._optimizer_state.counting)
        self._assembly.carry_out(self._full)
        self._carried_out = ""

    def runner(self) -> Run:
        return self.inner.runner()

    def synchronize(self) -> None:
        self.inner.synchronize()
        ranks, counts = self.inner.ranks, self._optimizer_state.counts
        names = names_by_id(self.inner.model)
        for variable, holders in self.inner.holding.weights:
            name = names[id(variable)]
            if name in counts:  # for the checkpoint, all of them
                counting = self.inner.holding.ranks_that_update(variable, holders)
                others = set(range(ranks.world.size)).difference(counting)
                deliver(counts[name], counting, others, ranks)


class _Probe:
    """Measures how much the weights of this rank matter, in steps of the pipeline.

    It works like :class:`ooodist.elastic.importance.Probe`, which gives the reasons.
    """

    def __init__(
        self,
        model: keras.Model,
        assembly: Assembly,
        optimizer_state: OptimizerState,
        train_all: Any,
    ) -> None:
        self._model, self._assembly, self._optimizer_state = model, assembly, optimizer_state
        self._train_all = train_all

    def __call__(self, batches: Sequence[Batch]) -> Measured:
        self._train_all()
        assembly, optimizer = self._assembly, self._model.optimizer
        every = [*self._model.variables, *self._model.metrics_variables, *optimizer.variables]
        held = [variable.value for variable in every if has_value(variable)]
        variables = [*held, *self._optimizer_state.variables]
        own = assembly.gradients.updated
        # A weight that several ranks have is counted on one of them.
        owners = assembly.gradients.owners
        counted = {name for name in own if owners[name][0] == assembly.ranks.position}
        total = Totals(len(batches))
        for batch in batches:
            with preserved(variables):
                self._optimizer_state.reset(list(self._optimizer_state.counts))
                before = [tf.constant(variable.numpy()) for variable in own.values()]
                sums = assembly.gradient_sums(batch)
                assembly.update(sums)
                gradients, steps = {}, {}
                for name, old, gradient in zip(own, before, sums, strict=True):
                    if name in counted:
                        gradients[name] = tf.cast(gradient, tf.float32)
                        steps[name] = tf.cast(own[name].value - old, tf.float32)
                total.add(gradients, steps)
        return total.measured()
