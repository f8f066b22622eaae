"""``ooodist.distribute``: a Keras model that trains on all ranks, in a chosen order.

The model stays the object it was. Four of its methods are replaced on the instance, so that
saving, cloning and inspecting it go on as before:

* ``make_train_function``: launches of several steps, ordered and exchanged.
* ``fit``: arrays are shared out; all ranks agree on the number of steps; rank 0 reports.
* ``evaluate``: batch-norm statistics are averaged first; arrays are shared out.
* ``get_metrics_result``: outside a traced step, the metrics of all ranks together.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist import engines
from ooodist.config import PlanningConfig
from ooodist.data.stream import Share
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.schedule.plan import Plan
from ooodist.training import arrays, replicas
from ooodist.training.backward import Order, OrderedBackward
from ooodist.training.epochs import EpochCare, StopTogether
from ooodist.training.exchange import DEFAULT_BUCKET_BYTES, GradientExchange
from ooodist.training.launch import Batch, Launch
from ooodist.training.planning import FROM_COSTS, Planned, find_plan

logger = logging.getLogger("ooodist")

# Keras callbacks that write files: rank 0's copy is enough, and two writers would clash.
_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
)


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
) -> keras.Model:
    """Makes ``model.fit`` and ``model.evaluate`` work on all ranks together.

    The computation is that of one process on the concatenated batches: gradients are averaged,
    whatever the optimiser, and clipping, decay and averages act on the mean. ``batch_size`` is
    per worker. Arrays are shared out over the ranks (give the same arrays everywhere); a data
    set or generator is used as it is on each rank, so give each rank its own part
    (``dataset.shard(ooodist.size(), ooodist.rank())``).

    Batch-norm statistics are each rank's own while training and are averaged over the ranks at
    the end of each epoch and before an evaluation. Callbacks run on every rank and see the same
    logs; those that write files run on rank 0 alone. A callback of your own that stops the
    training in the middle of an epoch must decide alike on all ranks.

    Args:
        model: a Keras model; compile it before or after.
        order: ``inorder`` (as TensorFlow would), ``first_k``, ``priority`` (exchanges by the
            next forward pass's need), ``planned`` (the best that the planner finds), a plan, a
            list of unit names, or a function from the backward units to such a list.
        k: for ``first_k``: the dW of how many layers run last; None for the best k.
        steps_per_launch: training steps traced into one function. The exchange of one overlaps
            the forward pass of the next; tracing takes that many times as long. None is the
            plan's choice, or 1 without one.
        accumulate: batches per update and exchange.
        credit: exchanges in flight; None for the engine's own. A plan has its own.
        bucket_bytes: small gradients travel together up to this size in bytes; None for 1 MiB.
            A plan has its own.
        planning: limits of what is planned here, and where profiles are kept.

    Returns:
        the same model.

    Raises:
        UserError: ``ooodist.init()`` was not called, or an argument is impossible.
    """
    for name, value in (("steps_per_launch", steps_per_launch), ("accumulate", accumulate)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UserError(f"{name} is {value!r}; it must be a whole number of at least 1")
    engine = engines.current()
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
        bucket_bytes=DEFAULT_BUCKET_BYTES if bucket_bytes is None else bucket_bytes,
    )
    backward = OrderedBackward(exchange, "inorder" if to_find else order, k or 0)
    model.ooodist = DistributedModel(
        model, engine, backward, steps_per_launch, accumulate, to_find, planning or PlanningConfig()
    )
    return model


def _to_find(order: Order, k: int | None) -> str | None:
    """The name of an order that is found from what things cost."""
    if not isinstance(order, str) or order not in FROM_COSTS or (order == "first_k" and k):
        return None
    return None if order == "first_k" and k == 0 else order


class DistributedModel:
    """What :func:`distribute` adds to a model; it is found under ``model.ooodist``.

    Attributes:
        engine: the engine.
        backward: orders and exchanges gradients; ``backward.steps`` tells what was traced.
        steps_per_launch, accumulate: as given to :func:`distribute`, or by the plan.
        planned: the plan that is carried out, with what it was made from; None if there is none.
        data_is_shared_out: the caller sees to it that data sets yield each rank's own part; fit
            then says nothing about it.
        batches_left: how many are still to come in this epoch; None: nobody knows.
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
        self.engine = engine
        self.backward = backward
        self.accumulate = accumulate
        self.planned: Planned | None = None
        self._to_find = to_find
        self._planning = planning
        self._given_steps_per_launch = steps_per_launch
        self.steps_per_launch = steps_per_launch or 1
        if backward.plan is not None:
            self._carry_out(Planned(backward.plan))
        order = getattr(backward.order, "__qualname__", backward.order)
        exchange = backward.exchange
        self._arguments = (
            f"{to_find or order} {backward.k} {steps_per_launch} {accumulate} {exchange.credit} "
            f"{exchange.bucket_bytes} {backward.plan and backward.plan.digest()}"
        )
        self._model = model
        self._alike = False  # weights were broadcast since the last fit began
        self.data_is_shared_out = False
        self.batches_left: int | None = None
        self._trained_since_average = False
        self._plain_fit = model.fit
        self._plain_evaluate = model.evaluate
        self._plain_metrics = model.get_metrics_result
        model.make_train_function = self._make_train_function
        model.fit = self._fit
        model.evaluate = self._evaluate
        model.get_metrics_result = self._metrics_result

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

    # Training

    def _make_train_function(self, force: bool = False) -> None:
        model = self._model
        if model.train_function is not None and not force:
            return
        launch = Launch(model, self.backward, accumulate=self.accumulate)

        def train_function(iterator: Iterator[Batch]) -> dict[str, tf.Tensor]:
            batches = self._next_batches(iterator)
            if not self._alike:
                self._make_alike(batches[0])
            self._trained_since_average = True
            if len(batches) == self.steps_per_launch * self.accumulate and _same_shapes(batches):
                return launch(batches)
            # What does not fill a launch runs step by step rather than being traced for once.
            logs: dict[str, tf.Tensor] = {}
            for first in range(0, len(batches), self.accumulate):
                logs = launch(batches[first : first + self.accumulate])
            return logs

        model.train_function = train_function

    def _next_batches(self, iterator: Iterator[Batch]) -> list[Batch]:
        wanted = self.steps_per_launch * self.accumulate
        if self.batches_left is not None:
            wanted = min(wanted, self.batches_left)
        batches = []
        for _ in range(wanted):
            batch = next(iterator, None)
            if batch is None:
                break
            batches.append(_without_optionals(batch))
        if self.batches_left is None and self.engine.size > 1:
            # Nobody knows how many there are: all ranks go on as long as all have data.
            have = np.array([len(batches)])
            batches = batches[: int(self.engine.all_reduce(have, "min")[0])]
        elif self.batches_left is not None:
            if len(batches) < wanted and self.engine.size > 1:
                raise UserError(
                    f"rank {self.engine.rank} ran out of data {self.batches_left - len(batches)} "
                    "batches before the end of the epoch; give every rank as many batches as its "
                    "data set promises, or repeat() it"
                )
            self.batches_left -= len(batches)
        left_over = len(batches) % self.accumulate
        if left_over:
            logger.warning(
                "fit: the data ends with %d batches, which do not make an update of %d: they are "
                "not used",
                left_over,
                self.accumulate,
            )
        batches = batches[: len(batches) - left_over]
        if not batches:
            raise StopIteration
        return batches

    def _make_alike(self, batch: Batch) -> None:
        model = self._model
        if not model.built or not model.optimizer.built:
            model._symbolic_build(data_batch=batch)
        self.engine.check_equal("the arguments of ooodist.distribute", self._arguments)
        replicas.broadcast_weights(self.engine, model)
        self._alike = True

    def _fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        given = inspect.signature(self._plain_fit).bind(*args, **kwargs).arguments
        engine = self.engine
        if engine.size > 1:
            if arrays.is_arrays(given.get("x")):
                given = self._share_out(given)
            elif not self.data_is_shared_out:
                logger.info(
                    "fit: %s is used as it is on every rank; each must yield its own part",
                    type(given.get("x")).__name__,
                )
        if engine.rank:
            given["verbose"] = 0
        callbacks = given.pop("callbacks", None)
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = self._callbacks(callbacks)
        if self.needs_plan:
            self.plan(_without_optionals(arrays.first_batch(given)), _num_steps(given))
        self._take_over_settings()
        self._alike = False
        return self._plain_fit(**given, callbacks=callbacks)

    def _take_over_settings(self) -> None:
        """Settings of compile() that mean something else here; no setting is ignored unsaid."""
        model = self._model
        batches = self.steps_per_launch * self.accumulate
        if model.steps_per_execution not in (1, batches):
            logger.warning(
                "fit: steps_per_execution=%d of compile() does not count; steps_per_launch=%d of "
                "ooodist.distribute() does",
                model.steps_per_execution,
                self.steps_per_launch,
            )
        model.steps_per_execution = batches
        if model.jit_compile:
            logger.info("fit: the training step is not compiled with XLA, which drops the order")

    def _share_out(self, given: dict[str, Any]) -> dict[str, Any]:
        """fit's arguments, with this rank's endless stream for arrays, and its validation rows."""
        engine = self.engine
        given = dict(given)
        batch_size = given.pop("batch_size", None) or 32
        data = tuple(given.pop(name, None) for name in ("x", "y", "sample_weight"))
        fraction = given.pop("validation_split", 0.0)
        if fraction and given.get("validation_data") is None:
            data, given["validation_data"] = arrays.validation_split(data, fraction)
        # All ranks must shuffle alike, whatever they seeded NumPy with.
        seed = engine.broadcast([np.array([np.random.randint(2**31)])])[0]
        share = Share(batch_size, engine.rank, engine.size, int(seed[0]))
        shuffle = given.get("shuffle", True)
        given["shuffle"] = False  # the stream is shuffled; Keras is not to say that it is not
        given["x"], steps = arrays.training_stream(_present(data), share, shuffle)
        given["steps_per_epoch"] = given.get("steps_per_epoch") or steps
        validation = given.get("validation_data")
        if validation is not None and arrays.is_arrays(validation[0]):
            part = arrays.evaluation_part(tuple(validation), engine.rank, engine.size)
            given["validation_data"] = _present(part)
            given["validation_batch_size"] = given.get("validation_batch_size") or batch_size
        return given

    def _callbacks(self, given: Any) -> list[keras.callbacks.Callback]:
        callbacks = [callback for callback in tf.nest.flatten(given) if callback is not None]
        if self.engine.rank:
            writers = [callback for callback in callbacks if isinstance(callback, _WRITERS)]
            if writers:
                names = sorted({type(callback).__name__ for callback in writers})
                logger.info("fit: %s run on rank 0 alone", ", ".join(names))
            callbacks = [callback for callback in callbacks if callback not in writers]
        return [EpochCare(self), *callbacks, StopTogether(self)]

    # Evaluation and metrics

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        inside_fit = kwargs.pop("_use_cached_eval_dataset", False)
        given = inspect.signature(self._plain_evaluate).bind(*args, **kwargs).arguments
        given.update(given.pop("kwargs", {}))
        engine = self.engine
        self.average_statistics()
        if engine.rank:
            given["verbose"] = 0
        if inside_fit:
            given["_use_cached_eval_dataset"] = True
        elif engine.size > 1 and arrays.is_arrays(given.get("x")):
            data = tuple(given.get(name) for name in ("x", "y", "sample_weight"))
            part = arrays.evaluation_part(data, engine.rank, engine.size)
            given["x"], given["y"], given["sample_weight"] = part
        return self._plain_evaluate(**given)

    def _metrics_result(self) -> dict[str, Any]:
        if tf.inside_function():
            return self._plain_metrics()
        return replicas.global_metrics(self.engine, self._model, self._plain_metrics)

    def average_statistics(self) -> None:
        """Averages batch-norm statistics over the ranks, if there was training since."""
        if self._trained_since_average:
            replicas.average_statistics(self.engine, self._model)
            self._trained_since_average = False


def _num_steps(given: dict[str, Any]) -> int | None:
    """How many steps fit will do, if that is known."""
    epochs = given.get("epochs", 1) - given.get("initial_epoch", 0)
    steps = given.get("steps_per_epoch")
    if steps is None and isinstance(given.get("x"), tf.data.Dataset):
        cardinality = int(given["x"].cardinality())
        steps = cardinality if cardinality > 0 else None
    return None if steps is None else steps * epochs


def _same_shapes(batches: Sequence[Batch]) -> bool:
    shapes = [[getattr(leaf, "shape", None) for leaf in tf.nest.flatten(b)] for b in batches]
    return all(shape == shapes[0] for shape in shapes)


def _present(parts: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(part for part in parts if part is not None)


def _without_optionals(batch: Batch) -> Batch:
    """Keras's array adapter yields an empty Optional for a sample_weight of None."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )
