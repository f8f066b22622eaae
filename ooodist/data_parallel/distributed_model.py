"""A Keras model that trains on all ranks, each on its part of the batch, in a chosen order.

A launch holds several steps, ordered and exchanged; what else fit and evaluate do on all ranks is
in :mod:`ooodist.trainer.joint`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ooodist.config.job import PlanningConfig
from ooodist.data_parallel.planning import Planned, find_plan
from ooodist.engines.base import Engine
from ooodist.planner.data_parallel import plan as plans
from ooodist.step import replicas
from ooodist.step.backward import OrderedBackward
from ooodist.step.launch import Batch, Launch, Run, in_launches
from ooodist.trainer import arrays
from ooodist.trainer.joint import JointModel, without_optionals

PLAN_NAME = "plan.yaml"


class DistributedModel(JointModel):
    """What :func:`ooodist.distribute` adds to a model; it is found under ``model.ooodist``.

    Attributes:
        backward: orders and exchanges gradients; ``backward.steps`` tells what was traced.
        planned: the plan that is carried out, with what it was made from; None if there is none.
    """

    def __init__(
        self,
        model: keras.Model,
        engine: Engine,
        backward: OrderedBackward,
        steps_per_launch: int | None,
        accumulate: int,
        to_find: str | None,
        planning: PlanningConfig,
    ) -> None:
        order = getattr(backward.order, "__qualname__", backward.order)
        exchange = backward.exchange
        arguments = (
            f"{to_find or order} {backward.k} {steps_per_launch} {accumulate} {exchange.credit} "
            f"{exchange.bucket_bytes} {backward.plan and backward.plan.digest()}"
        )
        super().__init__(
            model,
            engine,
            arguments=arguments,
            steps_per_launch=steps_per_launch or 1,
            accumulate=accumulate,
        )
        self.backward = backward
        self.planned: Planned | None = None
        self._to_find = to_find
        self._planning = planning
        self._given_steps_per_launch = steps_per_launch
        self._trained_since_average = False
        if backward.plan is not None:
            self._carry_out(Planned(backward.plan))

    @property
    def training_place(self) -> tuple[int, int]:
        return self.engine.rank, self.engine.size

    # Planning

    @property
    def needs_plan(self) -> bool:
        """Whether the order is still to be found."""
        return self._to_find is not None and self.planned is None

    def plan(self, batch: Batch, total_steps: int | None = None) -> None:
        """Finds the order and carries it out from now on; fit does so by itself.

        All ranks call it. The model stays as it is, except that its weights are rank 0's.

        Args:
            batch: one batch as the training data yields it.
            total_steps: of the training, if known.

        Raises:
            UserError: no plan fits into the memory limit.
        """
        assert self._to_find is not None
        self._make_alike(batch)
        self._carry_out(
            find_plan(
                self._model,
                batch,
                self.engine,
                self._to_find,
                settings=self._planning,
                steps_per_launch=self._given_steps_per_launch,
                total_steps=total_steps,
                accumulate=self.accumulate,
            )
        )

    def _carry_out(self, planned: Planned) -> None:
        self.backward.carry_out(planned.plan)
        self.planned = planned
        self.steps_per_launch = planned.plan.steps_per_launch

    def write_plan(self, folder: Path) -> None:
        """Writes the plan that is carried out, if there is one."""
        if self.planned is not None:
            plans.write(self.planned.plan, folder / PLAN_NAME)

    def _prepare(self, given: dict[str, Any]) -> None:
        if self.needs_plan:
            self.plan(without_optionals(arrays.first_batch(given)), num_steps(given))

    # Training

    def _launcher(self) -> Run:
        run = self._run_function()

        def train(batches: Sequence[Batch]) -> dict[str, tf.Tensor]:
            self._trained_since_average = True
            return run(batches)

        return train

    def _run_function(self) -> Run:
        """What trains on any number of batches."""
        return self._in_launches_of(self.backward, self.steps_per_launch)

    def _in_launches_of(self, backward: OrderedBackward, steps: int) -> Run:
        launch = Launch(self._model, backward, accumulate=self.accumulate, watch=self.watch)
        return in_launches(launch, steps=steps, accumulate=self.accumulate)

    def put_together(self) -> None:
        """Averages batch-norm statistics over the ranks, if there was training since."""
        if self._trained_since_average:
            replicas.average_statistics(self.engine, self._model)
            self._trained_since_average = False

    def end_epoch(self, logs: dict[str, Any]) -> None:
        self.put_together()
        replicas.check_replicas(self.engine, self._model)


def num_steps(given: dict[str, Any]) -> int | None:
    """How many steps fit will do, if that is known."""
    epochs = given.get("epochs", 1) - given.get("initial_epoch", 0)
    steps = given.get("steps_per_epoch")
    if steps is None and isinstance(given.get("x"), tf.data.Dataset):
        cardinality = int(given["x"].cardinality())
        steps = cardinality if cardinality > 0 else None
    return None if steps is None else steps * epochs
