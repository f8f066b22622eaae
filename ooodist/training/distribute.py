"""``ooodist.distribute``: a Keras model that trains on all ranks, in a chosen order.

A launch holds several steps, ordered and exchanged; what else fit and evaluate do on all ranks is
in :mod:`ooodist.training.joint`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ooodist import engines, yaml_dataclass
from ooodist.config import MOST_STEPS_PER_LAUNCH, PlanningConfig
from ooodist.elastic.config import ElasticConfig, check_order_is_found
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.schedule import plan as plans
from ooodist.schedule.data_parallel import BUCKET_BYTES
from ooodist.schedule.plan import Plan
from ooodist.training import arrays, replicas
from ooodist.training.backward import Order, OrderedBackward
from ooodist.training.exchange import GradientExchange
from ooodist.training.joint import JointModel, without_optionals
from ooodist.training.launch import Batch, Launch, Run, in_launches
from ooodist.training.planning import FROM_COSTS, Planned, find_plan

logger = logging.getLogger("ooodist")

PLAN_NAME = "plan.yaml"


def distribute(
    model: keras.Model,
    *,
    order: Order = "inorder",
    k: int | None = None,
    steps_per_launch: int | None = None,
    accumulate: int = 1,
    credit: int | None = None,
    bucket_bytes: int | None = None,
    planning: PlanningConfig | None = None,
    elastic: ElasticConfig | Mapping[str, Any] | None = None,
    sum_rows: bool | None = None,
) -> keras.Model:
    """Makes ``model.fit`` and ``model.evaluate`` work on all ranks together.

    The computation is that of one process on the concatenated batches: gradients are averaged,
    whatever the optimiser, and clipping, decay and averages act on the mean. ``batch_size`` is
    per worker. Arrays are shared out over the ranks (give the same arrays everywhere); a data
    set or generator is used as it is on each rank, so give each rank its own part
    (``dataset.shard(ooodist.size(), ooodist.rank())``).

    Batch-norm statistics are each rank's own while training and are averaged over the ranks at
    the end of each epoch and before an evaluation; with ``synchronized=True`` they, and the
    moments of each batch, are those of all ranks. Callbacks run on every rank and see the same
    logs; those that write files run on rank 0 alone. A callback of your own that stops the
    training in the middle of an epoch must decide alike on all ranks.

    A Keras loss over masked tokens is divided by the number of tokens of all workers, and one with
    ``reduction="sum"`` is the sum over all workers. A loss of your own must be a mean over samples;
    so must one with ``reduction="mean_with_sample_weight"``, which each worker divides by its own
    weights.

    Two things are not those of Keras on one process. An embedding's gradient has each row once, as
    the sum of its uses, where Keras gives the optimizer the uses one by one, which Adam, RMSprop
    and clipping square for themselves (see ``sum_rows``). And ``tf.random`` (not ``keras.random``)
    draws other numbers with another ``steps_per_launch``.

    Training ends with a UserError when a gradient or a weight is no longer finite, except where
    the optimizer scales the loss and leaves such steps out.

    Args:
        model: a Keras model; compile it before or after.
        order: ``inorder`` (as TensorFlow would), ``first_k``, ``priority`` (exchanges by the
            next forward pass's need), ``planned`` (what turns out to be the fastest while the model
            trains: it begins with ``inorder``), a plan, a list of unit names, or a function from
            the backward units to such a list. Where a process has several cores, a unit waits for
            all before it but the last few, so that cores are not idle at the end of each.
        k: for ``first_k``: the dW of how many layers run last; None for the best k.
        steps_per_launch: training steps traced into one function. The exchange of one overlaps
            the forward pass of the next; tracing takes that many times as long. None is the
            plan's choice, or 1 without one.
        accumulate: batches per update and exchange.
        credit: exchanges in flight; None for the engine's own. A plan has its own.
        bucket_bytes: small gradients travel together up to this size in bytes; None for 1 MiB.
            A plan has its own.
        planning: limits of what is planned here, and where profiles are kept.
        elastic: train only the tensors that matter most, as ``{"rho": 0.5, "renew": "200 steps"}``
            (see :class:`ooodist.elastic.config.ElasticConfig`); None: all.
        sum_rows: one process, too, gives the optimizer each row of an embedding once, so that any
            number of workers trains alike; with several workers it is always so. None: yes, but
            for the engine ``local``, whose numbers are those of plain Keras.

    Returns:
        the same model.

    Raises:
        UserError: ``ooodist.init()`` was not called, or an argument is impossible.
    """
    for name, value in (("steps_per_launch", steps_per_launch), ("accumulate", accumulate)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UserError(f"{name} is {value!r}; it must be a whole number of at least 1")
    if (steps_per_launch or 1) > MOST_STEPS_PER_LAUNCH:
        raise UserError(
            f"steps_per_launch is {steps_per_launch}; it must be {MOST_STEPS_PER_LAUNCH} at most, "
            "as each of them is traced"
        )
    engine = engines.current()
    if sum_rows is False and engine.size > 1:
        raise UserError(
            f"sum_rows is False, but {engine.size} workers add up their rows; leave it out"
        )
    to_find = _to_find(order, k)
    if (to_find or isinstance(order, Plan)) and (credit, bucket_bytes) != (None, None):
        raise UserError(
            f"credit is {credit} and bucket_bytes is {bucket_bytes}, but the order is a plan, "
            "which has its own; leave them out"
        )
    if isinstance(order, Plan) and steps_per_launch not in (None, order.steps_per_launch):
        raise UserError(
            f"steps_per_launch is {steps_per_launch}, but the plan has "
            f"{order.steps_per_launch}; leave it out"
        )
    exchange = GradientExchange(
        engine,
        credit=credit,
        bucket_bytes=BUCKET_BYTES if bucket_bytes is None else bucket_bytes,
        sum_rows=engine.name != "local" if sum_rows is None else sum_rows,
    )
    backward = OrderedBackward(exchange, "inorder" if to_find else order, k or 0)
    planning = planning or PlanningConfig()
    arguments = (model, engine, backward, steps_per_launch, accumulate, to_find, planning)
    config = read_elastic(elastic)
    if config is None:
        kind: type[DistributedModel] = DistributedModel
        if order == "planned" and planning.is_live and engine.size > 1:
            from ooodist.training.planned_model import PlannedModel  # it builds upon this module

            kind = PlannedModel
        model.ooodist = kind(*arguments)
    else:
        check_order_is_found(order, k)
        from ooodist.elastic.data_parallel import ElasticModel  # it builds upon this module

        model.ooodist = ElasticModel(*arguments, elastic=config)
    return model


def read_elastic(given: ElasticConfig | Mapping[str, Any] | None) -> ElasticConfig | None:
    """What ``elastic`` says; None where all tensors are trained. Raises UserError."""
    config = given if isinstance(given, ElasticConfig) else None
    if isinstance(given, Mapping):
        config = yaml_dataclass.read_dataclass(ElasticConfig, dict(given), "elastic")
    if config is not None and config.is_full:
        logger.info("elastic: rho is 1, or select is full, so all tensors are trained, always")
        return None
    return config


def _to_find(order: Order, k: int | None) -> str | None:
    """The name of an order that is found from what things cost."""
    if not isinstance(order, str) or order not in FROM_COSTS or (order == "first_k" and k):
        return None
    return None if order == "first_k" and k == 0 else order


class DistributedModel(JointModel):
    """What :func:`distribute` adds to a model; it is found under ``model.ooodist``.

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
