"""Elastic training on one worker or several: each selection has a traced step and its own plan.

Tensors that are not selected are neither computed, exchanged nor updated. Batch-norm statistics go
on moving, as the forward pass is that of training.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from ooodist.config.elastic import ElasticConfig
from ooodist.data_parallel.distributed_model import DistributedModel
from ooodist.data_parallel.planning import Planned, limits_of, planned_for, profile_for
from ooodist.elastic import timing
from ooodist.elastic.controller import Controller, Mask
from ooodist.elastic.importance import Probe
from ooodist.elastic.pricing import OneWorker, Pricing, SeveralWorkers
from ooodist.elastic.selecting import Selecting
from ooodist.elastic.slots import Slots
from ooodist.engines.gpu import seconds_of
from ooodist.profiler.state import all_variables, preserved
from ooodist.profiler.step import as_tensors, trace_step
from ooodist.step.backward import OrderedBackward
from ooodist.step.exchange import GradientExchange
from ooodist.step.launch import Batch, Launch, Run, in_launches

logger = logging.getLogger("ooodist")

EXCHANGING_ROUNDS = 6  # in which steps are timed with their exchange
SEARCHED = 3000  # plans that are weighed for a selection, which lasts for a while only


class ElasticModel(Selecting, DistributedModel):
    """What :func:`ooodist.distribute` adds to a model with ``elastic``."""

    def __init__(self, *arguments: Any, elastic: ElasticConfig) -> None:
        super().__init__(*arguments)
        self._begin_selecting(elastic)
        self._launches: OrderedDict[str, tuple[Planned | None, Launch]] = OrderedDict()
        self._planned_for: tuple[Any, ...] = ()

    @property
    def needs_plan(self) -> bool:
        """Whether nothing is known yet, or the model was compiled again since."""
        return self.controller is None or self._was_compiled_since(self._planned_for)

    def plan(self, batch: Batch, total_steps: int | None = None) -> None:
        """Measures the model and the network, and what selections cost; fit does so by itself.

        All ranks call it. The model stays as it is, except that its weights are rank 0's.

        Args:
            batch: one batch as the training data yields it.
            total_steps: of the training, if known.

        Raises:
            UserError: rho is too small, or no plan fits into the memory limit.
        """
        model, engine = self._model, self.engine
        self._make_alike(batch)
        with engine.agreed():
            slots = Slots(model)
            traced = trace_step(model, batch, accumulate=self.accumulate)
        settings = self._planning
        profile = profile_for(
            model, batch, engine, settings, accumulate=self.accumulate, traced=traced
        )
        self._costs, _ = timing.calibrated(
            model, batch, profile.costs, engine, accumulate=self.accumulate
        )
        if self._to_find is not None:
            limits = limits_of(engine, settings, self._given_steps_per_launch, total_steps)
            full = planned_for(
                self._to_find, self._costs, profile.network, limits, profile.model, engine
            )
            self.steps_per_launch = full.plan.steps_per_launch
            self._untouched = trace_step(model, batch, accumulate=self.accumulate, order="inorder")
        self._profile = profile
        self._slots = slots
        self._launches.clear()
        self._planned_for = self._compiled
        pricing = self._pricing(batch)
        self.planned = None  # those that were made to measure with are not carried out
        with engine.agreed():
            self.controller = Controller(
                self.config, model, engine, pricing, slots, Probe(model, slots)
            )
        self.watch.begin()  # steps that were measured do not count

    def _pricing(self, batch: Batch) -> Pricing:
        if self.engine.size == 1:
            return OneWorker(timing.selectable_of(self._costs))
        exchange = self.backward.exchange
        pricing = SeveralWorkers(
            self._costs,
            self._profile.network,
            exchange.bucket_bytes,
            exchange.credit,
            self.steps_per_launch,
        )
        return self._calibrated(pricing, batch)

    def _calibrated(self, pricing: SeveralWorkers, batch: Batch) -> SeveralWorkers:
        """With what three selections really take, exchange and all; all ranks run them together."""
        masks = timing.three_selections(pricing.choice)
        launches = [self.launch_for(Mask(0, pricing.choice.weights(m))) for m in masks.values()]
        batches = as_tensors((batch,) * (self.accumulate * self.steps_per_launch))

        def run(launch: Launch) -> float:
            self.engine.barrier()
            return seconds_of(lambda: launch(batches)) / self.steps_per_launch

        variables = all_variables(self._model, launches[0].trace(batches))
        with preserved([*variables, *self._slots.variables]):
            runs = [functools.partial(run, launch) for launch in launches]
            took = timing.timed(runs, EXCHANGING_ROUNDS, math.inf)
        measured = self.engine.all_reduce(np.array(took), "max").tolist()
        computing = [pricing.computing(mask) for mask in masks.values()]
        simulated = [pricing.simulated(mask) for mask in masks.values()]
        waiting = timing.fitted_waiting(computing, simulated, measured)
        pricing = replace(pricing, waiting=waiting)
        logger.info(
            "elastic: with the exchange, %s",
            "; ".join(
                f"{name}: measured {one * 1e3:.1f} ms a step, simulated {other * 1e3:.1f}, "
                f"calibrated {pricing.seconds(mask) * 1e3:.1f}"
                for (name, mask), one, other in zip(masks.items(), measured, simulated, strict=True)
            ),
        )
        return pricing

    # Training

    def _before_launch(self, batches: list[Batch], iterator: Iterator[Batch]) -> None:
        if self.needs_plan:  # there was no fit, but train_on_batch
            self.plan(batches[0])
        if self._selector.is_due:
            more = self._look_ahead(iterator, max(0, self.config.batches - len(batches)))
            self._selector.renew([*batches, *more][: self.config.batches])
            self._meter.interrupted()

    def _run_function(self) -> Run:
        return in_launches(self._launch, steps=self.steps_per_launch, accumulate=self.accumulate)

    def _launch(self, batches: Sequence[Batch]) -> dict[str, tf.Tensor]:
        assert self._selector.mask is not None
        logs = self.launch_for(self._selector.mask)(batches)
        self._count(len(batches) // self.accumulate)
        return logs

    def launch_for(self, mask: Mask) -> Launch:
        """That of the selection; those used last are kept, as tracing takes seconds."""
        if mask.digest not in self._launches:
            planned, backward = self._planned_backward(mask)
            launch = Launch(
                self._model,
                backward,
                accumulate=self.accumulate,
                updating=self._slots.counting,
                watch=self.watch,
            )
            self._launches[mask.digest] = planned, launch
            if len(self._launches) > self.config.cache:
                self._launches.popitem(last=False)
        self._launches.move_to_end(mask.digest)
        self.planned, launch = self._launches[mask.digest]
        self.backward = launch.backward
        return launch

    def _planned_backward(self, mask: Mask) -> tuple[Planned | None, OrderedBackward]:
        """The plan for a selection, if one is wanted, and what carries it out."""
        shared = self.backward.exchange
        # One for each selection, so that an engine's names serve one selection after the other.
        exchange = GradientExchange(
            self.engine,
            credit=shared.credit,
            bucket_bytes=shared.bucket_bytes,
            sum_rows=shared.sum_rows,
        )
        backward = OrderedBackward(exchange, selected=mask.weights)
        if self._to_find is None:
            return None, backward
        costs, digest = timing.masked(self._costs, self._untouched, mask.weights)
        limits = limits_of(self.engine, self._planning, self.steps_per_launch)
        planned = planned_for(
            self._to_find,
            costs,
            self._profile.network,
            replace(limits, evaluations=SEARCHED),
            digest,
            self.engine,
        )
        backward.carry_out(planned.plan)
        return planned, backward

    def end_epoch(self, logs: dict[str, Any]) -> None:
        super().end_epoch(logs)
        self._end_selected_epoch(logs, exchanges=self.engine.size > 1)
