"""Assembles the stages of a rank from plan, cut and transport, and runs steps with them."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_deferred import standing_in
from ooodist.engines.base import Engine
from ooodist.engines.devices import seconds_of
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.cutting import Cutter
from ooodist.pipeline.holding import Holding
from ooodist.pipeline.layers.out_of_memory import explaining_lack_of_memory, process_bytes
from ooodist.pipeline.links import gather_costs
from ooodist.pipeline.measure import (
    StepTimings,
    SynchronousWork,
    costs_of,
    measure_stages,
    seconds_by_kind,
)
from ooodist.pipeline.planning import (
    log_plan,
    plan_schedule,
    plan_stages,
    warn_if_one_process_is_faster,
)
from ooodist.pipeline.ranks import Ranks
from ooodist.pipeline.runtime.batch_metrics import BatchMetrics
from ooodist.pipeline.runtime.boundary import TensorBoundary, is_direct
from ooodist.pipeline.runtime.gradients import Gradients
from ooodist.pipeline.runtime.runtime import Runtime
from ooodist.pipeline.runtime.sharding import NewWeights, replicas_that_update
from ooodist.pipeline.runtime.transport import Transport
from ooodist.pipeline.runtime.update import Update
from ooodist.pipeline.runtime.work import StageWork, check_losses
from ooodist.pipeline.schedule_equivalence import computes_alike, order_dependent_stages
from ooodist.pipeline.stages import Stage, inputs_read_by, sent_specs, split
from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, shown_stages
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.planner.pipeline.search import auto, best_known
from ooodist.planner.pipeline.search import split as split_backward
from ooodist.planner.pipeline.simulate import MeasuredRun
from ooodist.settings.sections import ParallelConfig
from ooodist.step.optimizer import without_scaling
from ooodist.util.patience import Patience

logger = logging.getLogger("ooodist")

MEASURED_STEPS = 5
MOST_SECONDS = 5.0  # for measuring them; at least one step runs


@dataclass
class Assembly:
    """Everything that a rank needs to train its stages.

    Attributes:
        plan: the plan of all ranks, with the measured costs of the stages.
        stages: all stages of the model.
        cutter: makes the works of this rank's stages.
        reads: for each of this rank's stages, by number, which inputs of the model it needs.
        boundaries: the boundary after each stage but the last.
        ranks: the position of this rank among all.
        transport: to the other ranks; must be closed at the end.
        splitter: splits batches into micro-batches.
        gradients: gradient sums of this rank's weights.
        works: works of this rank's stages, by number.
        updated_by: the only replica that updates a weight, by its name: see runtime/sharding.py.
        update: updates this rank's weights.
        runtime: carries out the schedule.
        process_bytes: what this process takes beside its variables; None: unknown.
        skips: whether updates whose gradients are not finite are left out.
    """

    plan: PipelinePlan
    stages: list[Stage]
    cutter: Cutter
    reads: dict[int, list[int]]
    boundaries: list[TensorBoundary]
    ranks: Ranks
    transport: Transport
    splitter: BatchSplitter
    gradients: Gradients
    updated_by: Mapping[str, int] = field(default_factory=dict)
    works: dict[int, StageWork] = field(default_factory=dict)
    update: Update = field(init=False)
    process_bytes: int | None = None
    skips: bool = False

    def __post_init__(self) -> None:
        rank_of = self.plan.schedule.rank_of
        self._order_dependent = order_dependent_stages(self.stages, rank_of)
        self.select(None)
        self.carry_out(self.plan)

    def select(
        self,
        weights: Collection[str] | None,
        updating: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        """Trains only these weights from now on.

        All ranks pass the same ones, and then carry out a schedule that suits them.

        Args:
            weights: names; None for all.
            updating: context entered around the update while it is traced.

        Raises:
            UserError: the optimizer cannot be used in a pipeline.
        """
        self.works = self.cutter.works(weights)
        self.gradients.select(weights)
        for number, work in self.works.items():
            work.on_last_gradient = self.gradients.are_done
            if number == len(self.stages) - 1 and work.on_outputs is None:
                masks = self.stages[number].sent_masks
                work.on_outputs = BatchMetrics(self.splitter.model, self.splitter, masks)
        updated, share = self.gradients.updated, None
        if self.updated_by:
            changed = self.gradients.variables
            if without_scaling(self.splitter.model.optimizer).ema_overwrite_frequency:
                changed = self.gradients.own  # also those that are not selected
            share = NewWeights(changed, self.updated_by, self.ranks, self.transport)
        self.update = Update(
            self.splitter.model.optimizer,
            updated,
            [self.gradients.owners[name][0] == self.ranks.position for name in updated],
            self.ranks.world if self.updated_by else self.ranks.pipeline,
            updating,
            share,
            skips=self.skips,
        )

    def carry_out(self, plan: PipelinePlan, *, is_measured: bool = False) -> None:
        """Follows another schedule of the same stages from now on.

        Args:
            plan: the same on all ranks, which call this between the same two steps.
            is_measured: run steps with I and W separate and record them for
                :meth:`measured_in_steps`; they compute the same.
        """
        self.plan = plan
        self._timings = StepTimings() if is_measured else None
        self.runtime = self._runtime_of(plan, is_measured=is_measured)

    def _runtime_of(self, plan: PipelinePlan, *, is_measured: bool) -> Runtime:
        if is_measured:
            synchronous = {number: SynchronousWork(work) for number, work in self.works.items()}
            schedule = split_backward(plan.schedule)
            return Runtime(schedule, self.transport, synchronous, self.boundaries)
        divided = {number: work for number, work in self.works.items() if work.parts}
        works, boundaries = self.works, self.boundaries
        return Runtime(plan.schedule, self.transport, works, boundaries, divided=divided)

    def predicted(self, plan: PipelinePlan) -> float:
        """The seconds of a step among many: ranks wait for each other at its end only
        where the optimizer needs something of all gradients."""
        return plan.timeline.step_seconds if self.update.needs_all else plan.period

    def computes_alike(self, one: Schedule, other: Schedule) -> bool:
        """Whether two schedules of these stages compute the same numbers, bit for bit."""
        return computes_alike(one, other, self._order_dependent)

    @property
    def planned(self) -> str:
        """What the plan counts for this rank, in words."""
        own, position = sorted(self.works), self.ranks.position
        costs, peak = self.plan.costs, self.plan.timeline.peak_bytes[position]
        state = sum(costs.stages[number].state_bytes for number in own)
        beside = f", beside {self.process_bytes} of its process" if self.process_bytes else ""
        return (
            f"{peak} bytes for {shown_stages(own)}, {state} of them weights and optimizer "
            f"state{beside}"
        )

    @property
    def batch_size(self) -> int:
        """Samples per step of one pipeline."""
        return self.splitter.size

    @property
    def has_loss(self) -> bool:
        """Whether the last stage is on this rank."""
        return len(self.stages) - 1 in self.works

    @property
    def reads_data(self) -> bool:
        """Whether this rank needs any of the data."""
        return self.has_loss or any(self.reads.values())

    def measure(self, unfilled: Collection[int] = ()) -> PipelineCosts:
        """Measures the costs of all stages, on all ranks at the same time; all ranks call it.

        Args:
            unfilled: ids of variables whose values need not be kept: copies take memory.
        """
        held = {number: work.on_last_gradient for number, work in self.works.items()}
        for work in self.works.values():
            work.on_last_gradient = None
        own = measure_stages(self, self._steps, unfilled)
        for number, done in held.items():
            self.works[number].on_last_gradient = done
        return self._costs_of_all(own)

    def measured_in_steps(self) -> PipelineCosts:
        """The costs measured since :meth:`carry_out` was told to; all ranks call it."""
        assert self._timings is not None
        seconds = seconds_by_kind(self._timings.ran)
        update = statistics.median(self._timings.updates)
        return self._costs_of_all(costs_of(self, seconds, update))

    def _costs_of_all(self, own: Mapping[int, StageCost]) -> PipelineCosts:
        own = {n: replace(cost, buckets=max(1, self.works[n].parts)) for n, cost in own.items()}
        return PipelineCosts(
            gather_costs(self, own), self.plan.costs.memory_limit, self.update.needs_all
        )

    def _steps(self, begin: Callable[[], None]) -> list[MeasuredRun]:
        """This rank's actions in some steps of the schedule with I and W separate."""
        runtime = self._runtime_of(self.plan, is_measured=True)
        begin()
        runtime.step()  # libraries tune themselves in the first one
        ran: list[MeasuredRun] = []
        began = time.perf_counter()
        for number in range(MEASURED_STEPS):
            if number and self._most(time.perf_counter() - began) > MOST_SECONDS:
                break
            begin()
            ran += runtime.step()
        return ran

    def _most(self, seconds: float) -> float:
        """The maximum over all ranks."""
        return float(self.ranks.world.all_reduce(np.array(seconds), "max"))

    def step(
        self, batch: Any, after_forward: Callable[[float], None] = lambda loss: None
    ) -> list[MeasuredRun]:
        """Trains on a batch.

        Args:
            batch: as the data yields it; None where none of it is needed.
            after_forward: called after the last F of this rank, with what its stages add to the
                mean loss.

        Returns:
            the actions that were run, with times.
        """
        ran = self._run(batch, lambda: after_forward(self._loss()))
        if self._timings is None:
            self._end_step()
        else:
            # So that the update's time has no wait for exchanges and for others.
            self.gradients.wait_for_begun()
            self.ranks.world.barrier()
            self._timings.add(ran, seconds_of(self._end_step))
        return ran

    def _loss(self) -> float:
        return sum(work.mean_loss for work in self.works.values())

    def _end_step(self) -> None:
        self.update(self.gradients.sums())
        self.gradients.clear()

    def _run(
        self, batch: Any, after_forward: Callable[[], None] = lambda: None
    ) -> list[MeasuredRun]:
        if self.reads_data:
            needed = {place for places in self.reads.values() for place in places}
            parts = self.splitter.split(batch, needed, targets=self.has_loss)
            for number, work in self.works.items():
                data = [[one[at] for at in self.reads[number]] for one in parts.inputs]
                work.begin(data, parts.targets)
        else:
            for work in self.works.values():
                work.begin([[]] * self.plan.schedule.microbatches)
        # As one process scales the loss: a sum of all replicas' gradients would overflow before it
        # is divided, and steps with a loss scale would be skipped that one process does not skip.
        scale = self.update.loss_scale / self.ranks.replicas
        for work in self.works.values():
            work.loss_scale = scale
        self.gradients.begin()
        return self.runtime.step(after_forward)

    def gradient_sums(self, batch: Any) -> list[tf.Tensor]:
        """The sums of :attr:`gradients` on a batch, with no update; all ranks call it."""
        self._run(batch)
        sums = self.gradients.sums()
        self.gradients.clear()
        return sums


def assemble(
    model: keras.Model,
    batch: Any,
    parallel: ParallelConfig,
    ranks: Ranks,
    engine: Engine,
    patience: Patience,
    holding: Holding | None = None,
    *,
    is_live: bool = False,
    skips: bool = False,
) -> Assembly:
    """Plans, cuts and measures the stages of a model; all ranks call it together.

    Args:
        model: compiled.
        batch: as the data yields it.
        parallel: the job's settings.
        ranks: the position of this rank among all.
        engine: what the ranks agree with.
        patience: for how long a rank waits for a message.
        holding: gives each rank the variables of its stages; None: all keep the whole model.
        is_live: the schedule is provisional, the best of the known ones.
        skips: leave out updates whose gradients are not finite.

    Raises:
        UserError: on all ranks.
    """
    plan = plan_stages(model, batch, parallel, engine, is_live=is_live, skips=skips)
    with engine.agreed():
        splitter = BatchSplitter(model, batch, parallel.microbatches)
        with standing_in(model.variables, with_memory=False):
            stages = split(model, plan.parts)
            check_losses(stages)
            inputs, _ = splitter.specs()
            sent = sent_specs(model, stages, inputs)
    direct = is_direct(ranks)
    boundaries = [TensorBoundary(specs, direct=direct) for specs in sent[:-1]]
    rank_of = plan.schedule.rank_of
    updated_by: dict[str, int] = {}
    if parallel.shard_optimizer:
        updated_by = replicas_that_update(model, stages, rank_of, ranks.replicas)
    if holding is not None:
        holding.hold(stages, rank_of, updated_by)
    transport = Transport(ranks.pipeline.duplicate(), patience)
    gradients = Gradients(stages, rank_of, ranks, transport, updated_by)
    if holding is not None and updated_by:
        holding.share = NewWeights(gradients.own, updated_by, ranks, transport)
    own = [stage for stage in stages if rank_of[stage.number] == ranks.position]
    reads = {stage.number: inputs_read_by(stage, model) for stage in own}
    accumulators = gradients.accumulators
    with engine.agreed(), explaining_lack_of_memory("stages are made"):
        assembly = Assembly(
            replace(plan, costs=replace(plan.costs, memory_limit=parallel.memory_bytes)),
            stages,
            Cutter(
                stages,
                splitter,
                reads,
                boundaries,
                accumulators,
                parallel.recompute,
                gradients.divided,
            ),
            reads,
            boundaries,
            ranks,
            transport,
            splitter,
            gradients,
            updated_by,
            skips=skips,
        )
    unfilled = () if holding is None else tuple(holding.unfilled)
    costs = assembly.measure(unfilled)
    every = (*model.variables, *model.optimizer.variables, *accumulators.values())
    assembly.process_bytes = process_bytes(every)
    if holding is not None:
        holding.fill()
    find = best_known if is_live else auto
    assembly.carry_out(plan_schedule(plan, costs, parallel, engine, find=find))
    predicted = assembly.predicted(assembly.plan)
    log_plan(assembly.plan, stages, predicted)
    if engine.rank == 0:  # the log of the others shows warnings, too
        warn_if_one_process_is_faster(assembly.plan, predicted, ranks.replicas)
    logger.info("rank %d, planned: %s", ranks.position, assembly.planned)
    return assembly
