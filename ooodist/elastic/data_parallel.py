"""Trains selections on replicas: each selection has a traced step and its own plan.

Gradients of unselected weights are neither computed, exchanged nor applied. Batch-norm statistics
are still updated, as the forward pass is that of training. The plan of a selection may leave
exchanges to the next call (:mod:`ooodist.step.carried`); a new selection takes over when nothing is
left.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from ooodist.data_parallel.data_parallel_strategy import DataParallel
from ooodist.data_parallel.planning import planned_for
from ooodist.elastic import timing
from ooodist.elastic.controller import Mask
from ooodist.elastic.cost_model import CostModel, OneWorker, SeveralWorkers
from ooodist.elastic.importance import Probe
from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.engines.devices import seconds_of
from ooodist.planner.data_parallel.plan import PlanWithCosts
from ooodist.planner.wire import narrowed
from ooodist.profiler.folder import Calibration
from ooodist.profiler.state import all_variables, preserved
from ooodist.profiler.step import as_tensors, trace_step
from ooodist.profiler.storage import keep, profile_of
from ooodist.step.backward import OrderedBackward
from ooodist.step.exchange import GradientExchange
from ooodist.step.execution import Batch, Execution, Run, in_executions
from ooodist.step.sending.rows import RowGradients

logger = logging.getLogger("ooodist")

EXCHANGING_ROUNDS = 6  # for timing steps with their exchange
SEARCHED = 3000  # plans that are simulated for a selection, as it lasts only for a while


class SelectiveDataParallel:
    """Trains a selection on replicas.

    Args:
        inner: its backward pass, exchange and settings are used.

    Attributes:
        inner: as given.
        executions: the latest selections' plans and traced steps, by digest of the selection and
            whether calls may leave exchanges to each other.
    """

    needs_plan = False  # planned whenever elastic training itself is
    begins_in_full = True

    def __init__(self, inner: DataParallel) -> None:
        self.inner = inner
        self.executions: OrderedDict[tuple[str, bool], tuple[PlanWithCosts | None, Execution]]
        self.executions = OrderedDict()
        self._execution: Execution | None = None
        self._rows = RowGradients(inner.engine, "elastic training exchanges all as tables")

    @property
    def exchanges(self) -> bool:
        """Whether there are several workers."""
        return self.inner.engine.size > 1

    def plan(
        self, batch: Batch, total_steps: int | None
    ) -> tuple[CostModel, OptimizerState, Probe]:
        """Measures the model, the network, and the costs of selections.

        Raises:
            UserError: no plan fits into the memory limit.
        """
        inner = self.inner
        model, engine, accumulate = inner.model, inner.engine, inner.accumulate
        inner.broadcast(batch)
        with engine.agreed():
            optimizer_state = OptimizerState(model)
            probe = Probe(model, optimizer_state, accumulate)
            traced = probe.traced(batch)
        inner.flush()
        # Its costs are as measured: elastic training sends no rows.
        settings = inner.training.planning
        profile = profile_of(model, batch, engine, settings, accumulate=accumulate, traced=traced)
        calibration = profile.elastic
        if calibration is None:
            calibration, _ = timing.calibrated(
                model, batch, profile.costs, engine, accumulate=accumulate
            )
        self._costs = timing.scaled(profile.costs, calibration)
        if (order := inner.training.to_find) is not None:
            limits = inner.limits(total_steps)
            full = planned_for(order, self._costs, profile.network, limits, profile.model, engine)
            inner.steps_per_execution = full.plan.steps_per_execution
            self._untouched = trace_step(model, batch, accumulate=accumulate, order="inorder")
        self._profile = profile
        self._optimizer_state = optimizer_state
        self.executions.clear()
        cost_model: CostModel = OneWorker(timing.selectable_of(self._costs))
        if engine.size > 1:
            cost_model, calibration = self._several_workers(batch, calibration)
        if engine.rank == 0 and calibration != profile.elastic:
            keep(settings, replace(profile, elastic=calibration))
        inner.planned = None  # the plans of the measured steps are not carried out
        return cost_model, optimizer_state, probe

    def _several_workers(
        self, batch: Batch, calibration: Calibration
    ) -> tuple[SeveralWorkers, Calibration]:
        """The cost model of several workers, and the calibration with that of the exchange."""
        exchange = self.inner.backward.exchange
        costs, network = self._costs, self._profile.network
        if exchange.wire is not None:
            costs, network = narrowed(costs, network, exchange.wire)
        steps = self.inner.steps_per_execution
        bucket_bytes, credit = exchange.bucket_bytes, exchange.credit
        cost_model = SeveralWorkers(costs, network, bucket_bytes, credit, steps)
        settings = f"wire {exchange.wire}, buckets {bucket_bytes}, credit {credit}, steps {steps}"
        if calibration.exchange == settings:
            return replace(cost_model, waiting=calibration.waiting), calibration
        cost_model = self._calibrated(cost_model, batch)
        return cost_model, replace(calibration, exchange=settings, waiting=cost_model.waiting)

    def _calibrated(self, cost_model: SeveralWorkers, batch: Batch) -> SeveralWorkers:
        """Calibrates with real steps of three selections, exchange included; all ranks call it.

        These calls end with all their exchanges, as the simulated ones do.
        """
        assert self.inner.carrying is not None
        with self.inner.carrying.none():
            return self._calibrated_by_whole_calls(cost_model, batch)

    def _calibrated_by_whole_calls(
        self, cost_model: SeveralWorkers, batch: Batch
    ) -> SeveralWorkers:
        masks = timing.three_selections(cost_model.choice)
        executions = [
            self.execution_for(Mask(0, cost_model.choice.weights(m))) for m in masks.values()
        ]
        batches = as_tensors((batch,) * (self.inner.accumulate * self.inner.steps_per_execution))

        def run(execution: Execution) -> float:
            self.inner.engine.barrier()
            return seconds_of(lambda: execution(batches)) / self.inner.steps_per_execution

        variables = all_variables(self.inner.model, executions[0].trace(batches))
        with preserved([*variables, *self._optimizer_state.variables]):
            runs = [functools.partial(run, execution) for execution in executions]
            took = timing.timed(runs, EXCHANGING_ROUNDS, math.inf)
        measured = self.inner.engine.all_reduce(np.array(took), "max").tolist()
        computing = [cost_model.computing(mask) for mask in masks.values()]
        simulated = [cost_model.simulated(mask) for mask in masks.values()]
        waiting = timing.fitted_waiting(computing, simulated, measured)
        cost_model = replace(cost_model, waiting=waiting)
        logger.info(
            "elastic: with the exchange, %s",
            "; ".join(
                f"{name}: measured {one * 1e3:.1f} ms a step, simulated {other * 1e3:.1f}, "
                f"calibrated {cost_model.seconds(mask) * 1e3:.1f}"
                for (name, mask), one, other in zip(masks.items(), measured, simulated, strict=True)
            ),
        )
        return cost_model

    # Training

    def select(self, mask: Mask) -> None:
        """Trains only these weights from now on."""
        self._execution = self.execution_for(mask)

    def runner(self) -> Run:
        def execution(batches: Sequence[Batch]) -> dict[str, tf.Tensor]:
            assert self._execution is not None
            return self._execution(batches)

        inner = self.inner
        return in_executions(
            execution, steps=inner.steps_per_execution, accumulate=inner.accumulate
        )

    def synchronize(self) -> None:
        self.inner.synchronize()

    def execution_for(self, mask: Mask) -> Execution:
        """The selection's traced step; the latest are kept, as tracing takes seconds."""
        carrying = self.inner.carrying
        key = mask.digest, carrying is not None and carrying.is_wanted
        if key not in self.executions:
            planned, backward = self._planned_backward(mask)
            execution = Execution(
                self.inner.model,
                backward,
                accumulate=self.inner.accumulate,
                updating=self._optimizer_state.counting,
                watch=self.inner.watch,
                features=self.inner.training.features,
                carrying=self.inner.carrying_for(backward.plan),
                element_spec=lambda: self.inner.element_spec,
            )
            self.executions[key] = planned, execution
            assert self.inner.training.elastic is not None
            if len(self.executions) > self.inner.training.elastic.cache:
                self.executions.popitem(last=False)
        self.executions.move_to_end(key)
        self.inner.planned, execution = self.executions[key]
        self.inner.backward = execution.backward
        return execution

    def _planned_backward(self, mask: Mask) -> tuple[PlanWithCosts | None, OrderedBackward]:
        """The plan for a selection, if one is wanted, and what carries it out."""
        shared = self.inner.backward.exchange
        # One for each selection, so that selections, which never run at once, share an engine's
        # names.
        exchange = GradientExchange(
            self.inner.engine,
            credit=shared.credit,
            bucket_bytes=shared.bucket_bytes,
            sum_rows=shared.sum_rows,
            wire=shared.wire,
            feedback=shared.feedback,
            rows=self._rows,
        )
        backward = OrderedBackward(exchange, selected=mask.weights)
        if (order := self.inner.training.to_find) is None:
            return None, backward
        costs, digest = timing.masked(self._costs, self._untouched, mask.weights)
        steps = self.inner.steps_per_execution
        limits = replace(self.inner.limits(), steps_per_execution=steps, evaluations=SEARCHED)
        network, engine = self._profile.network, self.inner.engine
        planned = planned_for(order, costs, network, limits, digest, engine)
        backward.carry_out(planned.plan)
        return planned, backward
