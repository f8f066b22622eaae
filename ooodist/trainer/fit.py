"""Runs Keras's fit and evaluate on all ranks of a job; a strategy supplies what differs.

The model remains the same object. Some of its methods are replaced on the instance, so saving,
cloning and inspecting it work as before:

* ``make_train_function``: the strategy defines what a step is.
* ``fit``: arrays are sharded; all ranks agree on the number of steps; rank 0 reports.
* ``train_on_batch``: each rank passes its own batch.
* ``evaluate``: synchronizes what each rank knows of the model first; arrays are sharded.
* ``get_metrics_result``: outside a traced step, returns the metrics over all ranks.

What is replaced where a rank computes only a part of the model, in evaluations, too, is in
:mod:`ooodist.trainer.staged`.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.attributes import replaced
from ooodist.compat.keras_model import is_inside_fit
from ooodist.errors import UserError
from ooodist.step import metric_states, replicas
from ooodist.step.execution import Batch
from ooodist.trainer import arrays, writers
from ooodist.trainer.consistency import same_data
from ooodist.trainer.consistency.callbacks import on_all_ranks
from ooodist.trainer.consistency.meeting import meet, share_one_model
from ooodist.trainer.epochs import EpochCare, StopTogether
from ooodist.trainer.given.arguments import KerasMethod
from ooodist.trainer.readers import may_read_weights, why_complete
from ooodist.trainer.sharing import share_out
from ooodist.trainer.staged import StagedMethods
from ooodist.trainer.strategy import Strategy

logger = logging.getLogger("ooodist")


class DistributedFit:
    """Replaces a model's training methods; it is found under ``model.ooodist``.

    Args:
        strategy: how the model trains.

    Raises:
        UserError: the model was given to ooodist before.

    Attributes:
        strategy: as given.
        engine: the strategy's engine.
        steps_ahead: steps that the last call trained beyond those that Keras counts per call.
            ``fit`` keeps the steps per call of its start; if calls grow meanwhile, one call trains
            these steps too, and Keras's next calls return its logs.
        data_is_shared_out: the caller guarantees that data sets yield each rank's own part; fit
            then logs nothing about it.
        batches_left: batches still to come in this epoch; None if unknown.
        is_catching_up: whether the last of Keras's calls did nothing, as its batches were done.
        call_has_trained: whether the last of Keras's calls trained on batches.
    """

    def __init__(self, strategy: Strategy) -> None:
        model = strategy.model
        if hasattr(model, "ooodist"):
            raise UserError(
                f"model {model.name} was given to ooodist before; give it once, or make it anew "
                "for other arguments (keras.models.clone_model, then compile)"
            )
        self.strategy = strategy
        self.engine = strategy.engine
        self.steps_ahead = self._calls_to_skip = 0
        self.data_is_shared_out = False
        self.batches_left: int | None = None
        self._batches_done = 0  # see go_on
        self._restore: Callable[[Batch], None] | None = None
        self.is_catching_up = False
        self.call_has_trained = False
        self._model = model
        self._alike = False  # whether weights were broadcast since the last fit began
        self._trained = False  # whether there was training since the ranks were synchronized
        self._is_new_data = False  # whether nobody has looked yet if ranks have parts of their own
        self._ahead: deque[Batch] = deque()  # read from the data, not trained on yet
        self._steps_per_call = strategy.steps_per_execution
        self._last_logs: dict[str, tf.Tensor] = {}
        self._plain_fit = KerasMethod(model, "fit", self._fit)
        self._plain_train_on_batch = model.train_on_batch
        self._staged = StagedMethods(self) if strategy.inner.evaluates_in_stages else None
        self._plain_evaluate = KerasMethod(model, "evaluate", self._evaluate)
        self._plain_metrics = model.get_metrics_result
        model.make_train_function = self._make_train_function
        model.train_on_batch = self._train_on_batch
        model.get_metrics_result = self._metrics_result
        model.ooodist = self

    # Epochs

    def go_on(self, batches_done: int, restore: Callable[[Batch], None]) -> None:
        """Makes the next fit go on in an epoch of which so many batches, not all, are done.

        ``restore`` sets what this rank knew then; it is called with the first batch, before it.
        """
        self._batches_done, self._restore = batches_done, restore

    def begin_epoch(self, steps: int | None) -> None:
        """Begins an epoch of this many batches; None if unknown."""
        done, self._batches_done = self._batches_done, 0
        self.batches_left = None if steps is None else steps - done
        per_call = self._steps_per_call * self.strategy.accumulate
        self._calls_to_skip = done // per_call
        self.steps_ahead = 0
        self._ahead.clear()

    def end_epoch(self, logs: dict[str, Any]) -> None:
        """Synchronizes the ranks and checks that the replicas are identical."""
        self.synchronize()
        self.strategy.check_replicas()
        self.strategy.end_epoch(logs)

    def synchronize(self) -> None:
        """Synchronizes what each rank knows of the model, if there was training since."""
        if self._trained:
            self.strategy.synchronize()
            self._trained = False

    # Training

    def begin_batches(self, spec: Any) -> None:
        """Prepares for batches of this ``element_spec``, None if unknown; all ranks call it."""
        self.strategy.inner.element_spec = None  # a plan is made before the first call
        if self.strategy.begin_batches(spec):
            self._model.train_function = None  # made anew

    def _make_train_function(self, force: bool = False) -> None:
        model, strategy = self._model, self.strategy
        if model.train_function is not None and not force:
            return
        run = None if strategy.needs_plan else strategy.runner()

        def train_function(iterator: Iterator[Batch]) -> dict[str, tf.Tensor]:
            nonlocal run
            self.call_has_trained, self.is_catching_up = False, self._calls_to_skip > 0
            if self.is_catching_up:
                self._calls_to_skip -= 1
                return {}
            if self.steps_ahead:
                self.steps_ahead = max(0, self.steps_ahead - self._steps_per_call)
                return self._last_logs
            batches = self._next_batches(iterator)
            if self.engine.size == 1:  # open shapes give Keras's bits, and cost a little time
                strategy.inner.element_spec = getattr(iterator, "element_spec", None)
            if run is None:  # in train_on_batch, whose batch an override may have made
                batch = arrays.present(batches[0])
                strategy.plan(tf.nest.map_structure(tf.convert_to_tensor, batch))
                run = strategy.runner()
            if not self._alike:
                strategy.broadcast(batches[0])
                self._alike = True
                if self.engine.size > 1:
                    first = batches[0] if self._is_new_data else None  # ranks may differ in that
                    self._is_new_data = False
                    same_data.compare(self.engine, first, strategy.shard)
                if self._restore is not None:  # in which ranks may differ
                    self._restore(batches[0])
                    self._restore = None
            strategy.before_call(batches, lambda number: self._look_ahead(iterator, number))
            if strategy.left is not None:
                strategy.left -= len(batches)
            self._trained = True
            self._last_logs = run(batches)
            steps = len(batches) // strategy.accumulate
            self.steps_ahead = max(0, steps - self._steps_per_call)
            self.call_has_trained = True
            return self._last_logs

        model.train_function = train_function

    @property
    def _reads_data(self) -> bool:
        return self.strategy.reads_data or self.strategy.needs_plan

    def _look_ahead(self, iterator: Iterator[Batch], number: int) -> list[Batch]:
        """Up to ``number`` of the epoch's next batches, without consuming them."""
        if self.batches_left is not None:
            number = min(number, self.batches_left)
            if not self._reads_data:
                return [None] * number
        while len(self._ahead) < number:
            batch = next(iterator, None)
            if batch is None:
                break
            self._ahead.append(arrays.without_optionals(batch))
        return list(self._ahead)[:number]

    def _next_batches(self, iterator: Iterator[Batch]) -> list[Batch]:
        accumulate = self.strategy.accumulate
        wanted = max(self.strategy.steps_per_execution, self._steps_per_call) * accumulate
        if self.batches_left is not None:
            wanted = min(wanted, self.batches_left)
            if not self._reads_data:  # making them may take long
                self.batches_left -= wanted
                if not wanted:
                    raise StopIteration
                return [None] * wanted
        batches = self._look_ahead(iterator, wanted)
        for _ in batches:
            self._ahead.popleft()
        if self.batches_left is None and self.engine.size > 1:
            # The length of the epoch is unknown: all ranks continue as long as all have data.
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
        left_over = len(batches) % accumulate
        if left_over:
            logger.warning(
                "fit: the data ends with %d batches, which do not make an update of %d: they are "
                "not used",
                left_over,
                accumulate,
            )
        batches = batches[: len(batches) - left_over]
        if not batches:
            raise StopIteration
        return batches

    def _fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        given = self._plain_fit.bind(args, kwargs)
        engine = self.engine
        if engine.size > 1:
            meet(engine, "fit")
            made = None if self.data_is_shared_out else self._plain_fit.made
            x = given.get("x")
            given = share_out(
                given,
                self._model,
                engine,
                self.strategy.shard,
                say=not self.data_is_shared_out,
                made=made,
            )
            self._is_new_data = not self.data_is_shared_out and given.get("x") is x
        if engine.rank:
            given["verbose"] = 0
        callbacks = self._callbacks(given.pop("callbacks", None))
        epochs = given.get("epochs", 1) - given.get("initial_epoch", 0)
        batches, accumulate = arrays.batches_per_epoch(given), self.strategy.accumulate
        if batches is not None and batches < accumulate:
            raise UserError(
                f"accumulate is {accumulate}, but an epoch has only {batches} batches here; lower "
                "accumulate or batch_size, or give more data"
            )
        total = None if batches is None else batches * epochs - self._batches_done
        self.begin_batches(getattr(given.get("x"), "element_spec", None))
        with self._carrying(callbacks):
            if self.strategy.needs_plan:
                steps = None if total is None else max(1, total // accumulate)
                self.strategy.plan(arrays.without_optionals(arrays.first_batch(given)), steps)
            self.strategy.left = total
            self._take_over_settings()
            self._alike = False
            history: keras.callbacks.History = self._plain_fit(**given, callbacks=callbacks)
        self.strategy.end_fit()
        return history

    @contextlib.contextmanager
    def _carrying(self, callbacks: list[keras.callbacks.Callback]) -> Iterator[None]:
        """Lets calls in this block leave updates to each other if no callback looks at weights."""
        carrying = self.strategy.carrying
        if carrying is None:
            yield
            return
        readers = may_read_weights(callbacks)
        some = self.engine.all_reduce(np.array([len(readers)]), "max")  # of whatever rank
        try:
            with carrying.none(why_complete(readers)) if some[0] else contextlib.nullcontext():
                yield
        except BaseException:
            carrying.abandon()
            raise

    def _train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        strategy = self.strategy
        if strategy.accumulate > 1:
            raise UserError(
                f"train_on_batch gives one batch, but accumulate is {strategy.accumulate}, which "
                "makes one update of that many; use fit, or distribute the model with accumulate=1"
            )
        if strategy.begin_any_batch() or strategy.needs_plan:
            self._model.train_function = None  # made anew
        if not self._alike:
            meet(self.engine, "train_on_batch")
        # The batch is no part of the epoch.
        with replaced(self, batches_left=1, _ahead=deque(), steps_ahead=0):
            carrying = strategy.carrying
            with contextlib.nullcontext() if carrying is None else carrying.none():
                result = self._plain_train_on_batch(*args, **kwargs)
            strategy.watch.look()  # there may be no call after this one
            return result

    def _take_over_settings(self) -> None:
        """Overrides settings of compile() that mean something else here, and logs which."""
        model, steps = self._model, self.strategy.steps_per_execution
        self._steps_per_call = steps
        batches = steps * self.strategy.accumulate
        if model.steps_per_execution not in (1, batches):
            logger.warning(
                "fit: steps_per_execution=%d of compile() does not count; steps_per_execution=%d "
                "of ooodist.distribute() does",
                model.steps_per_execution,
                steps,
            )
        model.steps_per_execution = batches
        # Keras turns its default "auto" into True where there are accelerators.
        if model.jit_compile and self.strategy.inner.warns_of_jit_compile:
            logger.warning(
                'fit: jit_compile of compile() (True, or Keras\' own "auto") does not count: the '
                "training step is not compiled with XLA, which drops the order; "
                "compile(jit_compile=False) says so"
            )

    def _callbacks(self, given: Any) -> list[keras.callbacks.Callback]:
        with self.engine.agreed():
            if isinstance(given, keras.callbacks.CallbackList):
                raise UserError("callbacks is a keras.callbacks.CallbackList; give a plain list")
            callbacks = self.check_callbacks(given)
            if not self.strategy.has_whole_optimizer:
                writers.check_saves_at_ends_of_epochs(callbacks)
        callbacks, following = on_all_ranks(callbacks, self.strategy)
        callbacks = writers.on_this_rank(callbacks, self.strategy)
        self.strategy.watch.leave_loss_to(callbacks)
        callbacks = [EpochCare(self), *callbacks]
        if following is not None:
            callbacks = [following.first, *callbacks, following.last]
        return [*callbacks, StopTogether(self)]

    def check_callbacks(self, given: Any) -> list[keras.callbacks.Callback]:
        """The callbacks given to a method of the model, as a list.

        Raises:
            UserError: one cannot be used with this strategy.
        """
        if isinstance(given, keras.callbacks.CallbackList):
            given = given.callbacks
        callbacks = [callback for callback in tf.nest.flatten(given) if callback is not None]
        self.strategy.inner.check_callbacks(callbacks)
        return callbacks

    # Evaluation and metrics

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        given = self._plain_evaluate.bind(args, kwargs)
        engine = self.engine
        inside_fit = is_inside_fit(given)
        if not inside_fit:  # fit has checked its own
            meet(engine, "evaluate")
            self.check_callbacks(given.get("callbacks"))
        self.strategy.watch.look()
        self.synchronize()
        if not inside_fit and engine.size > 1:
            share_one_model(self.strategy, given)
        if engine.size > 1:
            metric_states.refuse_what_does_not_add_up(self._model)
        if engine.rank:
            given["verbose"] = 0
        if not inside_fit and engine.size > 1 and arrays.is_arrays(given.get("x")):
            data = tuple(given.get(name) for name in arrays.NAMES)
            part = arrays.evaluation_part(data, *self.strategy.shard)
            given.update(zip(arrays.NAMES, part, strict=True))
        elif not inside_fit and self._plain_evaluate.made(given.get("x"), "x"):
            given["x"] = arrays.evaluation_batches(given["x"], *self.strategy.shard)
        if self._staged is not None:
            self._staged.begin_evaluation(given, inside_fit=inside_fit)
        return self._plain_evaluate(**given)

    def _metrics_result(self) -> dict[str, Any]:
        if tf.inside_function():
            return self._plain_metrics()
        return replicas.global_metrics(self.engine, self._model, self._plain_metrics)


def whole(model: keras.Model) -> AbstractContextManager[None]:
    """Gives all ranks the whole model in a block, to save it or to look at its weights.

    All ranks enter the block. In a pipeline each rank has the weights and the optimizer state of
    its own stages alone otherwise, and with ``shard_optimizer`` a part of the optimizer's state
    (all of it on rank 0 after ``fit``); elsewhere the block changes nothing::

        with ooodist.whole(model):
            if ooodist.rank() == 0:
                model.save("model.keras")

    Args:
        model: a model that was given to ``ooodist.pipelined`` or ``ooodist.distribute``.

    Raises:
        UserError: it was not.
    """
    strategy = _strategy_of(model, "it is whole as it is")
    if not strategy.has_whole_optimizer:
        meet(strategy.engine, "ooodist.whole")
    return strategy.whole()


def flush(model: keras.Model) -> None:
    """Applies the updates that the last call of ``fit`` has left to the next; all ranks call it.

    A plan may carry exchanges of a call's last step into the next call. Evaluations, checkpoints,
    callbacks and whatever follows ``fit`` find all updates applied. So this is needed only in a
    callback that has ``ooodist_reads_no_weights = True`` and looks at the weights now and then, and
    after ``fit`` has ended with an exception. It does nothing if nothing is left.

    Args:
        model: a model that was given to ``ooodist.distribute`` or ``ooodist.pipelined``.

    Raises:
        UserError: it was not, or not all ranks have the same to apply.
    """
    strategy = _strategy_of(model, "nothing of it is left to be applied")
    if strategy.carrying is not None:
        strategy.carrying.flush_also_abandoned()


def _strategy_of(model: keras.Model, otherwise: str) -> Strategy:
    """How a model is trained. Raises UserError, which says what is so ``otherwise``."""
    if not hasattr(model, "ooodist"):
        raise UserError(
            f"model {model.name} was not given to ooodist.distribute or ooodist.pipelined, so "
            f"{otherwise}"
        )
    strategy: Strategy = model.ooodist.strategy
    return strategy
