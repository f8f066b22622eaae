"""Elastic training in a pipeline.

Stages before the first with a selected tensor only run forward, and no gradient is sent to them;
the others compute the dW of what is selected. Each selection has a schedule of its own. Stages are
cut anew for it, as far as it changes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.config.elastic import ElasticConfig
from ooodist.config.job import ParallelConfig, PlanningConfig
from ooodist.elastic.controller import Controller, Mask
from ooodist.elastic.importance import Measured, Totals
from ooodist.elastic.pipeline_pricing import Pipeline
from ooodist.elastic.selecting import Selecting
from ooodist.elastic.slots import Slots
from ooodist.elastic.stage_units import measure_stage_units
from ooodist.engines.mpi import MpiEngine
from ooodist.pipeline.assembly import Assembly
from ooodist.pipeline.cutting import first_trained
from ooodist.pipeline.ownership import hand_out
from ooodist.pipeline.planning import plan_schedule
from ooodist.pipeline.training import PipelinedModel
from ooodist.planner.costs import StepCosts
from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.plan import PipelinePlan, reschedule
from ooodist.profiler.state import preserved
from ooodist.step.launch import Batch
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")


class ElasticPipeline(Selecting, PipelinedModel):
    """What :func:`ooodist.pipelined` adds to a model with ``elastic``."""

    can_swap_schedules = False  # each selection has a schedule of its own

    def __init__(
        self,
        model: keras.Model,
        engine: MpiEngine,
        parallel: ParallelConfig,
        stall_limit: float,
        planning: PlanningConfig,
        elastic: ElasticConfig,
    ) -> None:
        super().__init__(model, engine, parallel, stall_limit, planning)
        self._begin_selecting(elastic)
        self._carried_out = ""  # digest of the selection that stages and schedule are for
        self._plans: dict[str, PipelinePlan] = {}  # by digest of the selection

    def plan(self, batch: Batch, total_steps: int | None = None) -> None:
        super().plan(batch, total_steps)
        assert self.assembly is not None
        self._full = self.assembly.plan
        self._plans.clear()
        self._carried_out = ""
        with self.engine.agreed():
            self._optimizer_slots = Slots(self._model)
        units = self._measured_units(self.assembly)
        with self.engine.agreed():
            self.controller = Controller(
                self.config,
                self._model,
                self.engine,
                Pipeline(units, self._full.costs, self._full.schedule, self._schedule_for),
                self._optimizer_slots,
                _Probe(self._model, self.assembly, self._optimizer_slots, self._train_all),
            )

    def _measured_units(self, assembly: Assembly) -> StepCosts:
        """On rank 0, for all: the others wait, so that it has the machine for itself."""
        text = ""
        with self.engine.agreed():
            if self.engine.rank == 0:
                units = measure_stage_units(self._model, assembly.splitter, self._full.parts)
                text = yaml_dataclass.dump(yaml_dataclass.plain(units))
        text = self.engine.broadcast_text(text)
        units = yaml_dataclass.read(StepCosts, yaml_dataclass.parse(text, "of rank 0"))
        return units

    def _schedule_for(self, costs: PipelineCosts, first: int) -> Schedule:
        return reschedule(self._full, self.parallel.schedule, costs, first).schedule

    # Training

    def _before_launch(self, batches: list[Batch], iterator: Iterator[Batch]) -> None:
        controller = self._selector
        if controller.is_due:
            more = self._look_ahead(iterator, self.config.batches - len(batches))
            found = [*batches, *more][: self.config.batches]
            number = int(self.engine.all_reduce(np.array([len(found)]), "min")[0])
            controller.renew(found[:number])
            self._meter.interrupted()
        assert controller.mask is not None
        if self._carried_out != controller.mask.digest:
            self._carry_out(controller.mask)
            self._carried_out = controller.mask.digest

    def _look_ahead(self, iterator: Iterator[Batch], number: int) -> list[Batch]:
        assert self.assembly is not None
        if self.assembly.reads_data or self.batches_left is None:
            return super()._look_ahead(iterator, number)
        return [None] * min(number, self.batches_left)

    def _carry_out(self, mask: Mask) -> None:
        """Trains the selected weights alone, with a schedule for it."""
        assembly, pricing = self.assembly, self._selector.pricing
        weights, digest = mask.weights, mask.digest
        assert assembly is not None
        assert isinstance(pricing, Pipeline)
        first = first_trained(assembly.stages, weights)
        if digest not in self._plans:
            costs = pricing.masked(pricing.choice.numbers(weights))
            self._plans[digest] = plan_schedule(
                self._full, costs, self.parallel, self.engine, first
            )
        plan = self._plans[digest]
        assembly.select(weights, self._optimizer_slots.counting)
        assembly.carry_out(plan)
        logger.info(
            "elastic: %s; schedule %s, predicted %.1f ms a step",
            f"stages before {first} only run forward" if first else "all stages train",
            plan.schedule.name,
            plan.timeline.step_seconds * 1e3,
        )

    def _train_all(self) -> None:
        """For a while, as before the first selection; until :meth:`_carry_out`."""
        assert self.assembly is not None
        self.assembly.select(None, self._optimizer_slots.counting)
        self.assembly.carry_out(self._full)
        self._carried_out = ""

    def _launcher(self) -> Any:
        launch = super()._launcher()

        def train(batches: Sequence[Batch]) -> dict[str, Any]:
            logs: dict[str, Any] = launch(batches)
            self._count(1)
            return logs

        return train

    def put_together(self) -> None:
        trained = self._trained
        super().put_together()
        if trained:
            owner = {variable.path: position for variable, position in self._weights}
            counts = self._optimizer_slots.counts
            hand_out([(counts[path], owner[path]) for path in counts], self.ranks.pipeline)

    def end_epoch(self, logs: dict[str, Any]) -> None:
        super().end_epoch(logs)
        self._end_selected_epoch(logs, exchanges=self.ranks.replicas > 1)


class _Probe:
    """Measures how much the weights of this rank matter, in steps of the pipeline.

    As :class:`ooodist.elastic.importance.Probe`, which has the reasons.
    """

    def __init__(
        self, model: keras.Model, assembly: Assembly, slots: Slots, train_all: Any
    ) -> None:
        self._model, self._assembly, self._slots = model, assembly, slots
        self._train_all = train_all

    def __call__(self, batches: Sequence[Batch]) -> Measured:
        self._train_all()
        assembly, optimizer = self._assembly, self._model.optimizer
        held = [*self._model.variables, *self._model.metrics_variables, *optimizer.variables]
        variables = [*(variable.value for variable in held), *self._slots.variables]
        own = assembly.gradients.variables
        # A weight that several ranks have counts on one of them.
        owners = assembly.gradients.owners
        counted = {v.path for v in own if owners[v.path][0] == assembly.ranks.position}
        total = Totals(len(batches))
        for batch in batches:
            with preserved(variables):
                self._slots.reset(list(self._slots.counts))
                before = [tf.constant(variable.numpy()) for variable in own]
                sums = assembly.gradient_sums(batch)
                assembly.update(sums)
                gradients, steps = {}, {}
                for variable, old, gradient in zip(own, before, sums, strict=True):
                    if variable.path in counted:
                        gradients[variable.path] = tf.cast(gradient, tf.float32)
                        steps[variable.path] = tf.cast(variable.value - old, tf.float32)
                total.add(gradients, steps)
        return total.measured()
