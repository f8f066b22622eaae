"""What differs between the ways in which several ranks train one model.

::

    DistributedFit ──> DataParallel            replicas that exchange gradients
                  ──> Pipeline                 stages of one model
                  ──> Elastic ──> either       only the weights that matter now

:class:`ooodist.trainer.fit.DistributedFit` alone touches Keras' methods; it asks its strategy.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from ooodist.compat.keras_model import compiled_loss, compiled_metrics
from ooodist.engines.base import Engine
from ooodist.step import metric_states, replicas
from ooodist.step.building import build
from ooodist.step.finite import GradientWatch
from ooodist.step.launch import Batch, Run

logger = logging.getLogger("ooodist")

LookAhead = Callable[[int], list[Batch]]  # the next so many batches of the epoch, which stay


class Strategy(ABC):
    """A way to train a model on all ranks; all of them call its methods together.

    Args:
        arguments: of the user, as text; the same on all ranks, or the first fit raises UserError.

    Attributes:
        model: compiled, or compiled before the first step.
        engine: of the ranks.
        arguments: as given.
        steps_per_execution, accumulate: a call uses so many batches, multiplied.
        left: batches of this fit that are still to be trained on; None: nobody knows.
        watch: ends the training when gradients or weights are not finite.
        is_whole_between_epochs: each rank has all trained weights at any time.
        is_trying: calls are run in one way and another at present, to find the faster.
    """

    is_whole_between_epochs = True
    is_trying = False

    def __init__(
        self,
        model: keras.Model,
        engine: Engine,
        *,
        arguments: str,
        steps_per_execution: int = 1,
        accumulate: int = 1,
    ) -> None:
        self.model = model
        self.engine = engine
        self.arguments = arguments
        self.steps_per_execution = steps_per_execution
        self.accumulate = accumulate
        self.left: int | None = None
        self.watch = GradientWatch(engine, model)

    @property
    def inner(self) -> Strategy:
        """The one that computes steps: itself, or that around which it is."""
        return self

    @property
    def reads_data(self) -> bool:
        """Whether this rank computes something of the batches; else it need not make them."""
        return True

    @property
    @abstractmethod
    def shard(self) -> tuple[int, int]:
        """Which part of the training data this rank uses, of how many."""

    @property
    @abstractmethod
    def needs_plan(self) -> bool:
        """Whether something is to be found before the next step."""

    @abstractmethod
    def plan(self, batch: Batch, total_steps: int | None = None) -> None:
        """Finds it. The model stays as it is, except that its weights are rank 0's.

        Args:
            batch: one batch as the training data yields it.
            total_steps: of the training, if known.

        Raises:
            UserError: there is no plan within the limits; on all ranks.
        """

    @abstractmethod
    def write_plan(self, folder: Path) -> None:
        """Writes what was found, if something was, into the folder of the job."""

    @abstractmethod
    def runner(self) -> Run:
        """What trains on the batches of a call, or fewer; made anew after each ``compile``."""

    @abstractmethod
    def synchronize(self) -> None:
        """Gives all ranks what each knows of the model; called if there was training since."""

    def before_call(self, batches: Sequence[Batch], look_ahead: LookAhead) -> None:  # noqa: B027
        """Called with the batches of a call, and what comes behind them, before it runs."""

    def end_epoch(self, logs: dict[str, Any]) -> None:  # noqa: B027
        """Called when all ranks are synchronized at the end of an epoch; may add to the logs."""

    def close(self) -> None:  # noqa: B027
        """Ends what runs beside the training; the next fit plans anew."""

    # Of elastic training, what a job keeps and shows of it

    def selection(self) -> dict[str, Any] | None:
        """What a checkpoint keeps of the selection, as plain values; None if all is trained."""
        return None

    def restore_selection(self, state: dict[str, Any]) -> None:
        """Goes on with that of a checkpoint."""
        logger.warning("the checkpoint's selection of tensors does not count: all are trained now")

    def write_report(self, folder: Path) -> list[str]:
        """Writes what is worth looking at after a training; rank 0 calls it. The files' names."""
        return []

    # For all strategies

    def broadcast(self, batch: Batch) -> None:
        """Gives all ranks rank 0's weights. Raises UserError where their arguments differ."""
        build(self.model, batch)
        self.engine.check_equal("the arguments of ooodist.distribute", self.arguments)
        replicas.broadcast_weights(self.engine, self.model)
        if self.engine.size > 1:
            metric_states.refuse_what_does_not_add_up(self.model)
        self.watch.begin()

    @property
    def compiled(self) -> tuple[Any, ...]:
        """Other objects after each ``compile`` of the model."""
        model = self.model
        return model.optimizer, compiled_loss(model), compiled_metrics(model)

    def was_compiled_since(self, compiled: tuple[Any, ...]) -> bool:
        """Whether that is not ``compiled`` any more."""
        before_and_now = zip(self.compiled, compiled, strict=True)
        return any(one is not other for one, other in before_and_now)
