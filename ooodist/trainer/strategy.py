"""Defines the interface between fit and each way in which several ranks train one model.

::

    DistributedFit ──> DataParallel            replicas that exchange gradients
                  ──> Pipeline                 stages of one model
                  ──> Elastic ──> either       only the weights that matter now

Only :class:`ooodist.trainer.fit.DistributedFit` touches Keras's methods; it asks its strategy.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import keras

from ooodist.compat.keras_model import compiled_loss, compiled_metrics
from ooodist.engines.base import Engine
from ooodist.settings.training import Training
from ooodist.step import metric_states, replicas
from ooodist.step.building import build
from ooodist.step.carried import Carrying
from ooodist.step.execution import Batch, Run
from ooodist.step.finiteness.finite import GradientWatch
from ooodist.step.rank_state import RankState

logger = logging.getLogger("ooodist")

LookAhead = Callable[[int], list[Batch]]  # up to so many next batches, without consuming them


class StagedEvaluation(Protocol):
    """Evaluates a model of which each rank computes a part; all ranks call it together."""

    @property
    def batches_per_call(self) -> int:
        """How many batches :meth:`outputs` should be given at a time."""

    def metrics(self, batches: Iterator[Batch]) -> Iterator[dict[str, Any]]:
        """The metrics after each batch; it may read some batches ahead."""

    def outputs(self, batches: Iterable[Batch]) -> Any:
        """This rank's share of the model's outputs for these batches, as tensors."""

    def gathered(self, outputs: Any) -> Any:
        """The outputs of all ranks, as arrays, on rank 0; None on others."""


class Strategy(ABC):
    """A way to train a model on all ranks; all of them call its methods together.

    Attributes:
        model: compiled, or compiled before the first step.
        engine: what the ranks communicate with.
        training: what the user has asked for.
        arguments: that as text; if ranks differ, the first fit raises UserError.
        steps_per_execution, accumulate: their product is the number of batches of a call.
        element_spec: of what the batches of the next call are read from; None if it is not known.
        left: batches of this fit that are still to be trained on; None if unknown.
        watch: ends the training when gradients or weights are not finite, or as ``on_nan`` says.
        has_whole_model: whether each rank has all weights.
        has_whole_optimizer: whether each has all of the optimizer's state, too.
        evaluates_in_stages: whether each rank computes only a part of the model in an evaluation,
            too; if not, each evaluates its samples on the whole model, as Keras does.
        is_trying: whether calls are run in alternative ways at present, to find the fastest.
        rank_state: what the steps of each rank keep for themselves; checkpoints keep it.
        carrying: holds the updates that a call has left to the next; None if calls never leave any.
        warns_of_jit_compile: whether XLA is not used although ``compile`` allows it.
    """

    has_whole_model = True
    has_whole_optimizer = True
    evaluates_in_stages = False
    is_trying = False
    warns_of_jit_compile = True

    def __init__(self, model: keras.Model, engine: Engine, training: Training) -> None:
        self.model = model
        self.engine = engine
        self.training = training
        self.arguments = training.arguments
        self.steps_per_execution = training.steps_per_execution or 1
        self.accumulate = training.accumulate
        self.element_spec: Any = None
        self.left: int | None = None
        self.watch = GradientWatch(engine, model, training.on_nan)
        self.carrying: Carrying | None = None
        self.rank_state = RankState()

    @property
    def inner(self) -> Strategy:
        """The strategy that computes steps: this one, or the one that it wraps."""
        return self

    @property
    def reads_data(self) -> bool:
        """Whether this rank computes anything from the batches; if not, it need not make them."""
        return True

    @property
    def predicted_seconds(self) -> float | None:
        """Seconds of a batch by the plan that is carried out; None if nothing is predicted."""
        return None

    @property
    @abstractmethod
    def shard(self) -> tuple[int, int]:
        """Which part of the training data this rank uses, and of how many, as (index, count)."""

    @property
    @abstractmethod
    def needs_plan(self) -> bool:
        """Whether a plan has to be found before the next step."""

    @abstractmethod
    def plan(self, batch: Batch, total_steps: int | None = None) -> None:
        """Finds a plan. The model stays as it is, except that its weights become rank 0's.

        Args:
            batch: one batch as the training data yields it.
            total_steps: updates of the training; None if unknown.

        Raises:
            UserError: no plan is within the limits; on all ranks.
        """

    def check_callbacks(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:  # noqa: B027
        """Raises UserError if one of the user's callbacks cannot work with this strategy."""

    @abstractmethod
    def write_plan(self, folder: Path) -> None:
        """Writes the plan, if there is one, into the folder of the job."""

    @abstractmethod
    def runner(self) -> Run:
        """What trains on the batches of a call, or fewer; made anew after ``compile``."""

    @abstractmethod
    def synchronize(self) -> None:
        """Makes the replicas one model; called only if there was training since."""

    def check_replicas(self) -> None:
        """Raises UserError, on all ranks, if trained weights are not the same on all replicas."""
        replicas.check_replicas(self.engine, self.model)

    def follow_rank_0(self, *, with_optimizer: bool = False) -> bool:
        """Gives all ranks the weights of rank 0 where they differ; returns whether any did.

        Raises UserError, on all ranks, if what has changed on some ranks alone cannot be followed.
        """
        variables = self.alike_on_all(with_optimizer=with_optimizer)
        return replicas.follow_rank_0(self.engine, variables)

    def alike_on_all(self, *, with_optimizer: bool = True) -> list[Any]:
        """The variables that have rank 0's values on all ranks when a training begins."""
        return replicas.alike_on_all(self.model, with_optimizer=with_optimizer)

    def whole(
        self, root: int | None = None, *, returns: bool = False
    ) -> AbstractContextManager[None]:
        """Gives ranks the whole model in this block; all ranks enter it.

        Args:
            root: the rank that gets it; None: all ranks do.
            returns: after the block, the others get what the root's variables are then.
        """
        return contextlib.nullcontext()

    def in_parts(self, *, returns: bool = False) -> AbstractContextManager[None]:
        """Gives each variable a rank that has all of it, for a checkpoint in parts; all enter it.

        Args:
            returns: what these variables are after the block counts.
        """
        return contextlib.nullcontext()

    def starting_on_rank_0(self) -> AbstractContextManager[None]:
        """Rank 0 has the whole model in this block, and may set its weights; all ranks enter it.

        Where ranks do not have the whole model, what they need of it has rank 0's values after it.
        """
        return contextlib.nullcontext()

    def evaluation(self, first_batch: Callable[[], Batch] | None) -> StagedEvaluation:
        """What evaluates in stages, which are made if there are none yet.

        Args:
            first_batch: returns one batch of (x, y, …) as the data yields it; None if there is
                nothing to compare with.

        Raises:
            UserError: stages cannot be made; on all ranks.
        """
        raise AssertionError(f"{type(self).__name__} does not evaluate in stages")

    def begin_batches(self, spec: Any) -> bool:
        """Called on all ranks before training with batches of another kind may begin.

        Args:
            spec: the ``element_spec`` of the batches; None if it is not known.

        Returns:
            whether :meth:`runner` must be called anew.
        """
        return False

    def begin_any_batch(self) -> bool:
        """As :meth:`begin_batches`, before a batch of any shape, unlike those of other ranks."""
        return False

    def before_call(self, batches: Sequence[Batch], look_ahead: LookAhead) -> None:  # noqa: B027
        """Called before a call runs, with its batches and a way to see those that follow."""

    def flush(self) -> None:
        """Applies the updates that the last call has left to the next; all ranks call it."""
        if self.carrying is not None:
            self.carrying.flush()

    def end_epoch(self, logs: dict[str, Any]) -> None:  # noqa: B027
        """Called at the end of an epoch, once all ranks are synchronized; may add to the logs."""

    def end_fit(self) -> None:  # noqa: B027
        """Called at the end of a fit that has not failed, on all ranks."""

    def close(self) -> None:  # noqa: B027
        """Ends what runs beside the training; the next fit plans anew."""

    # What a job saves and reports of elastic training

    def selection(self) -> dict[str, Any] | None:
        """The selection for a checkpoint, as plain values; None if all is trained."""
        return None

    def restore_selection(self, state: dict[str, Any]) -> None:
        """Continues with the selection of a checkpoint."""
        logger.warning("the checkpoint's selection of tensors does not count: all are trained now")

    def write_report(self, folder: Path) -> list[str]:
        """Writes reports after a training, on rank 0; returns the names of the files."""
        return []

    # For all strategies

    def broadcast(self, batch: Batch) -> None:
        """Gives all ranks rank 0's weights. Raises UserError if their arguments differ."""
        self.build(batch)
        self.engine.check_equal("the arguments of ooodist.distribute", self.arguments)
        self.broadcast_weights()
        if self.engine.size > 1:
            metric_states.refuse_what_does_not_add_up(self.model)
        self.watch.begin()

    def build(self, batch: Batch) -> None:
        """Builds weights, metrics and optimizer."""
        build(self.model, batch)

    def broadcast_weights(self) -> None:
        """Gives all ranks rank 0's weights and optimizer state."""
        replicas.broadcast_variables(self.engine, self.alike_on_all())

    @property
    def compiled(self) -> tuple[Any, ...]:
        """The objects that ``compile`` makes; each call of it makes new ones."""
        model = self.model
        return model.optimizer, compiled_loss(model), compiled_metrics(model)

    def was_compiled_since(self, compiled: tuple[Any, ...]) -> bool:
        """Whether the model was compiled again since ``compiled`` was read."""
        before_and_now = zip(self.compiled, compiled, strict=True)
        return any(one is not other for one, other in before_and_now)
