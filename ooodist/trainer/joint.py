"""A Keras model whose fit and evaluate work on all ranks of a job together.

The model stays the object it was. Five of its methods are replaced on the instance, so that
saving, cloning and inspecting it go on as before:

* ``make_train_function``: what a step is, the subclasses say.
* ``fit``: arrays are shared out; all ranks agree on the number of steps; rank 0 reports.
* ``train_on_batch``: each rank gives its own batch.
* ``evaluate``: what ranks know of the model on their own is put together first; arrays are shared
  out.
* ``get_metrics_result``: outside a traced step, the metrics of all ranks together.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_model import compiled_loss, compiled_metrics, is_inside_fit
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.step import metric_states, replicas
from ooodist.step.building import build
from ooodist.step.finite import GradientWatch
from ooodist.step.launch import Batch, Run
from ooodist.trainer import arrays, writers
from ooodist.trainer.epochs import EpochCare, StopTogether
from ooodist.trainer.sharing import share_out

logger = logging.getLogger("ooodist")


class JointModel(ABC):
    """What is added to a model; it is found under ``model.ooodist``.

    Args:
        arguments: the same on all ranks, or the first fit raises UserError.

    Raises:
        UserError: the model is one already.

    Attributes:
        engine: the engine.
        steps_per_launch, accumulate: a launch uses so many batches, multiplied. ``fit`` calls the
            train function for as many steps as launches had when it began; if launches grow
            meanwhile, one call trains for the next ones, too.
        steps_ahead: of these calls, how many steps were trained for that are still to come.
        data_is_shared_out: the caller sees to it that data sets yield each rank's own part; fit
            then says nothing about it.
        is_whole_between_epochs: each rank has all trained weights at any time.
        batches_left: how many are still to come in this epoch; None: nobody knows.
        watch: ends the training when gradients or weights are not finite.
        is_trying: whether launches are run in one way and another at present, to find the faster.
    """

    is_whole_between_epochs = True
    is_trying = False

    def __init__(
        self,
        model: keras.Model,
        engine: Engine,
        *,
        arguments: str,
        steps_per_launch: int,
        accumulate: int,
    ) -> None:
        if hasattr(model, "ooodist"):
            raise UserError(
                f"model {model.name} was given to ooodist before; give it once, or make it anew "
                "for other arguments (keras.models.clone_model, then compile)"
            )
        self.engine = engine
        self.steps_per_launch = steps_per_launch
        self.accumulate = accumulate
        self.steps_ahead = 0
        self.data_is_shared_out = False
        self.batches_left: int | None = None
        self.watch = GradientWatch(engine, model)
        self._model = model
        self._arguments = arguments
        self._alike = False  # weights were broadcast since the last fit began
        self._ahead: deque[Batch] = deque()  # taken from the data, and not trained on so far
        self._steps_per_call = steps_per_launch
        self._last_logs: dict[str, tf.Tensor] = {}
        self._plain_fit = model.fit
        self._plain_train_on_batch = model.train_on_batch
        self._plain_evaluate = model.evaluate
        self._plain_metrics = model.get_metrics_result
        model.make_train_function = self._make_train_function
        model.fit = self._fit
        model.train_on_batch = self._train_on_batch
        model.evaluate = self._evaluate
        model.get_metrics_result = self._metrics_result

    @property
    @abstractmethod
    def training_place(self) -> tuple[int, int]:
        """Which part of the training data this rank uses, of how many."""

    @property
    @abstractmethod
    def needs_plan(self) -> bool:
        """Whether something is still to be found before the first step."""

    @property
    def _compiled(self) -> tuple[Any, ...]:
        """Other objects after each ``compile``."""
        model = self._model
        return model.optimizer, compiled_loss(model), compiled_metrics(model)

    def _was_compiled_since(self, compiled: tuple[Any, ...]) -> bool:
        """Whether that is not ``_compiled`` any more."""
        return any(one is not other for one, other in zip(self._compiled, compiled, strict=True))

    @abstractmethod
    def plan(self, batch: Batch, total_steps: int | None = None) -> None:
        """Finds it; all ranks call it, with a batch of the data."""

    @abstractmethod
    def write_plan(self, folder: Path) -> None:
        """Writes what was found, if something was, into the folder of the job."""

    @abstractmethod
    def _prepare(self, given: dict[str, Any]) -> None:
        """Called with fit's arguments before it begins; finds what is still to be found."""

    @abstractmethod
    def _launcher(self) -> Run:
        """What runs the batches of a launch, or fewer."""

    @abstractmethod
    def put_together(self) -> None:
        """Gives all ranks what each knows of the model, if there was training since."""

    @abstractmethod
    def end_epoch(self, logs: dict[str, Any]) -> None:
        """The same, with a check that ranks which must be alike are so; may add to the logs."""

    def begin_epoch(self, steps: int | None) -> None:
        """Begins an epoch of so many batches; None: nobody knows."""
        self.batches_left = steps
        self.steps_ahead = 0
        self._ahead.clear()

    def selection(self) -> dict[str, Any] | None:
        """Of elastic training: what a checkpoint keeps of it, as plain values."""
        return None

    def restore_selection(self, state: dict[str, Any]) -> None:
        """Goes on with that of a checkpoint."""
        logger.warning("the checkpoint's selection of tensors does not count: all are trained now")

    def write_report(self, folder: Path) -> list[str]:
        """Writes what is worth looking at after a training; rank 0 calls it. The files' names."""
        return []

    # Training

    def _make_train_function(self, force: bool = False) -> None:
        model = self._model
        if model.train_function is not None and not force:
            return
        launch = self._launcher()

        def train_function(iterator: Iterator[Batch]) -> dict[str, tf.Tensor]:
            if self.steps_ahead:
                self.steps_ahead = max(0, self.steps_ahead - self._steps_per_call)
                return self._last_logs
            batches = self._next_batches(iterator)
            if not self._alike:
                self._make_alike(batches[0])
            self._before_launch(batches, iterator)
            self._last_logs = launch(batches)
            steps = len(batches) // self.accumulate
            self.steps_ahead = max(0, steps - self._steps_per_call)
            return self._last_logs

        model.train_function = train_function

    def _make_alike(self, batch: Batch) -> None:
        """Gives all ranks rank 0's weights."""
        model = self._model
        build(model, batch)
        self.engine.check_equal("the arguments of ooodist.distribute", self._arguments)
        replicas.broadcast_weights(self.engine, model)
        if self.engine.size > 1:
            metric_states.refuse_what_does_not_add_up(model)
        self.watch.begin()
        self._alike = True

    def _before_launch(  # noqa: B027 - most have nothing to do
        self, batches: list[Batch], iterator: Iterator[Batch]
    ) -> None:
        """Called with the batches of a launch, and what comes behind them, before it runs."""

    def _look_ahead(self, iterator: Iterator[Batch], number: int) -> list[Batch]:
        """Up to so many of the next batches of the epoch, which stay the next ones."""
        if self.batches_left is not None:
            number = min(number, self.batches_left)
        while len(self._ahead) < number:
            batch = next(iterator, None)
            if batch is None:
                break
            self._ahead.append(without_optionals(batch))
        return list(self._ahead)[:number]

    def _next_batches(self, iterator: Iterator[Batch]) -> list[Batch]:
        wanted = max(self.steps_per_launch, self._steps_per_call) * self.accumulate
        if self.batches_left is not None:
            wanted = min(wanted, self.batches_left)
        batches = self._look_ahead(iterator, wanted)
        for _ in batches:
            self._ahead.popleft()
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

    def _fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        given = inspect.signature(self._plain_fit).bind(*args, **kwargs).arguments
        engine = self.engine
        if engine.size > 1:
            given = share_out(
                given, self._model, engine, self.training_place, say=not self.data_is_shared_out
            )
        if engine.rank:
            given["verbose"] = 0
        callbacks = self._callbacks(given.pop("callbacks", None))
        self._prepare(given)
        self._take_over_settings()
        self._alike = False
        return self._plain_fit(**given, callbacks=callbacks)

    def _train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(self._plain_train_on_batch).bind(*args, **kwargs).arguments
        if self.accumulate > 1:
            raise UserError(
                f"train_on_batch gives one batch, but accumulate is {self.accumulate}, which makes "
                "one update of that many; use fit, or distribute the model with accumulate=1"
            )
        data = tuple(given.get(name) for name in arrays.NAMES)
        data = arrays.with_class_weight(data, given.pop("class_weight", None))
        if self.needs_plan:
            self.plan(tf.nest.map_structure(tf.convert_to_tensor, arrays.present(data)))
        epoch = self.batches_left, self._ahead, self.steps_ahead
        self.batches_left, self._ahead, self.steps_ahead = 1, deque(), 0  # it is no part of it
        try:
            given.update(zip(arrays.NAMES, data, strict=True))
            return self._plain_train_on_batch(**given)
        finally:
            self.batches_left, self._ahead, self.steps_ahead = epoch

    def _take_over_settings(self) -> None:
        """Settings of compile() that mean something else here; no setting is ignored unsaid."""
        model = self._model
        self._steps_per_call = self.steps_per_launch
        batches = self.steps_per_launch * self.accumulate
        if model.steps_per_execution not in (1, batches):
            logger.warning(
                "fit: steps_per_execution=%d of compile() does not count; steps_per_launch=%d of "
                "ooodist.distribute() does",
                model.steps_per_execution,
                self.steps_per_launch,
            )
        model.steps_per_execution = batches
        if model.jit_compile:  # Keras turns its default "auto" into True, here on CPUs, too
            logger.warning(
                'fit: jit_compile of compile() (True, or Keras\' own "auto") does not count: the '
                "training step is not compiled with XLA, which drops the order; "
                "compile(jit_compile=False) says so"
            )

    def _callbacks(self, given: Any) -> list[keras.callbacks.Callback]:
        if isinstance(given, keras.callbacks.CallbackList):
            raise UserError("callbacks is a keras.callbacks.CallbackList; give a plain list")
        callbacks = [callback for callback in tf.nest.flatten(given) if callback is not None]
        if not self.is_whole_between_epochs:
            writers.check_saves_at_ends_of_epochs(callbacks)
        callbacks = writers.on_this_rank(callbacks, self.engine)
        self.watch.leave_loss_to(callbacks)
        return [EpochCare(self), *callbacks, StopTogether(self)]

    # Evaluation and metrics

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(self._plain_evaluate).bind(*args, **kwargs).arguments
        given.update(given.pop("kwargs", {}))
        engine = self.engine
        self.put_together()
        if engine.size > 1:
            metric_states.refuse_what_does_not_add_up(self._model)
        if engine.rank:
            given["verbose"] = 0
        if not is_inside_fit(given) and engine.size > 1 and arrays.is_arrays(given.get("x")):
            data = tuple(given.get(name) for name in arrays.NAMES)
            part = arrays.evaluation_part(data, engine.rank, engine.size)
            given.update(zip(arrays.NAMES, part, strict=True))
        return self._plain_evaluate(**given)

    def _metrics_result(self) -> dict[str, Any]:
        if tf.inside_function():
            return self._plain_metrics()
        return replicas.global_metrics(self.engine, self._model, self._plain_metrics)


def without_optionals(batch: Batch) -> Batch:
    """Keras's array adapter yields an empty Optional for a sample_weight of None."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )
