"""Pipeline parallelism: the layers of a Keras model are divided among the ranks of a pipeline.

Each rank has the weights of its own stages, and computes and trains only these (see holding.py). A
batch goes through the stages in micro-batches, as scheduled; then each rank updates its weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ooodist.checkpoint.parallel_write import spread
from ooodist.compat.keras_deferred import standing_in
from ooodist.compat.keras_model import build_with
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.pipeline.assembly import Assembly, assemble
from ooodist.pipeline.batches import whole_microbatches
from ooodist.pipeline.evaluation.evaluation import Evaluation
from ooodist.pipeline.holding import Holding
from ooodist.pipeline.layers.out_of_memory import explaining_lack_of_memory
from ooodist.pipeline.live_schedule import LiveSchedule
from ooodist.pipeline.ownership import average_statistics, check_weights
from ooodist.pipeline.planning import write_schedule
from ooodist.pipeline.ranks import make_ranks
from ooodist.pipeline.runtime.record import Record
from ooodist.planner.pipeline.plan import AUTO, PipelinePlan
from ooodist.planner.pipeline.simulate import MeasuredRun
from ooodist.settings.training import Training
from ooodist.step.all_ranks.batch_norm import synchronized_layers
from ooodist.step.execution import Batch, Run
from ooodist.step.finiteness.skipping import changed_by_forward
from ooodist.step.optimizer import without_scaling
from ooodist.trainer.strategy import Strategy
from ooodist.trainer.writers import refuse_swapping
from ooodist.util.patience import LEAST_SECONDS, Patience

SCHEDULE_NAME = "schedule.csv"


def check_model(model: keras.Model, replicas: int) -> None:
    """Raises UserError if a model cannot be trained in so many pipelines."""
    if not model.compiled:
        raise UserError(f"model {model.name} is not compiled; compile it before ooodist.pipelined")
    if hasattr(without_scaling(model.optimizer), "optimizers"):  # MultiOptimizer
        raise UserError(
            f"the optimizer is a {type(model.optimizer).__name__}, which updates all weights of a "
            "model at once, but a rank of a pipeline has only its own; take a single optimizer"
        )
    if type(model).train_step is not keras.Model.train_step:
        raise UserError(
            f"{type(model).__name__} has a train_step of its own, which cannot be split into "
            "stages; give what it does as a loss, as metrics or as layers"
        )
    if model.run_eagerly:
        raise UserError(
            f"model {model.name} runs eagerly, so that it has no graph that could be split; "
            "compile it with run_eagerly=False"
        )
    if replicas > 1 and (layers := synchronized_layers(model)):
        raise UserError(
            f"layer {layers[0].name} is a BatchNormalization with synchronized=True, but data is "
            f"{replicas}: pipelines normalize each micro-batch by itself; take synchronized=False"
        )


class Pipeline(Strategy):
    """The strategy of :func:`ooodist.pipelined`.

    Attributes:
        parallel: how layers and samples are divided among the ranks.
        ranks: the position of this rank among all.
        assembly: stages and schedule; None until the first batch is known.
        ran: this rank's actions in the last step, with times.
        holding: the variables that each rank has.
    """

    has_whole_model = has_whole_optimizer = False
    evaluates_in_stages = True

    def __init__(self, model: keras.Model, engine: Engine, training: Training) -> None:
        assert training.parallel is not None
        assert engine.world is not None
        self.parallel = parallel = training.parallel
        check_model(model, parallel.data)
        super().__init__(model, engine, training)
        self.ranks = make_ranks(engine.world, parallel.pipeline, parallel.data)
        self._record_world = self.ranks.world.duplicate()  # for all plans: none is ever freed
        self.holding = Holding(model, engine, self.ranks)
        self.assembly: Assembly | None = None
        self.ran: list[MeasuredRun] = []
        self._patience = Patience(training.timeout, expected=LEAST_SECONDS)  # they are traced
        self._swaps_schedules = training.elastic is None
        self._live: LiveSchedule | None = None
        self._free_unused: list[Callable[[], None]] = []  # communicators of replaced stages
        self._planned_for: tuple[Any, ...] = ()
        self._is_for_training = False  # whether the stages were made for the training's batches
        self._evaluation: Evaluation | None = None
        self._last_logs: dict[str, Any] = {}

    @property
    def shard(self) -> tuple[int, int]:
        return self.ranks.replica, self.ranks.replicas

    @property
    def reads_data(self) -> bool:
        """Whether a stage of this rank needs any of the data, which may take long to make."""
        return self.assembly is None or self.assembly.reads_data

    @property
    def needs_plan(self) -> bool:
        """Whether there are no stages for training yet, or the model was compiled again since."""
        return not self._is_for_training or self._has_no_stages()

    def _has_no_stages(self) -> bool:
        return self.assembly is None or self.was_compiled_since(self._planned_for)

    def plan(self, batch: Batch, total_steps: int | None = None) -> None:
        """Splits the model and makes the schedule; fit calls this itself.

        All ranks call it. Each keeps the weights of its stages, with rank 0's values if the model
        was built before it was given to ooodist.

        Args:
            batch: one batch as the training data yields it.
            total_steps: not used.

        Raises:
            UserError: the model cannot be split, or does not fit into the memory limit.
        """
        model = self.model
        check_model(model, self.parallel.data)
        self.close()
        for free in self._free_unused:  # not in close, which a rank may call on its own
            free()
        self._free_unused.clear()
        self.broadcast(batch)
        planning = self.training.planning
        is_live = self.parallel.schedule == AUTO and planning.trial and self._swaps_schedules
        with explaining_lack_of_memory(f"rank {self.engine.rank} makes and measures its stages"):
            self.assembly = assemble(
                model,
                batch,
                self.parallel,
                self.ranks,
                self.engine,
                self._patience,
                self.holding,
                is_live=is_live,
                skips=self.watch.skipping is not None,
            )
        if is_live and self.ranks.pipeline.size > 1:  # one rank alone never waits
            self._live = LiveSchedule(self.engine, self, self.assembly, share=planning.share)
        self._record = Record(
            model,
            self.ranks,
            self._record_world,
            self.assembly.plan.schedule.rank_of[-1],
            self.assembly.batch_size,
            self.assembly.transport,
            self._patience,
        )
        self._planned_for = self.compiled
        self._is_for_training = True
        self._has_trained = False

    @property
    def fastest(self) -> PipelinePlan:
        """The plan that is carried out, or that was before others took turns with it."""
        assert self.assembly is not None
        return self.assembly.plan if self._live is None else self._live.plan

    @property
    def predicted_seconds(self) -> float | None:
        return None if self.assembly is None else self.assembly.predicted(self.fastest)

    def writers(self) -> dict[int, int]:
        """Which rank writes each variable into a checkpoint, by the variable's id."""
        held = (*self.holding.weights, *self.holding.optimizer_state)
        return spread(
            [(variable, self.ranks.at_same_position(holders)) for variable, holders in held]
        )

    def check_callbacks(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        if self.parallel.shard_optimizer:
            refuse_swapping(callbacks, "parallel.shard_optimizer")

    def write_plan(self, folder: Path) -> None:
        write_schedule(self.fastest, folder / SCHEDULE_NAME)

    def close(self) -> None:
        """Ends the thread that moves messages, and the search; the next fit plans anew."""
        if self._live is not None:
            self._live.close()
            self._live, self.is_trying = None, False
        if self.assembly is not None:
            self.assembly.transport.close()
            unused = (self.assembly.transport.communicator, *self.assembly.gradients.communicators)
            self._free_unused += [communicator.free for communicator in unused]
            self.assembly = self._evaluation = None

    # Training

    def runner(self) -> Run:
        def run(batches: Sequence[Batch]) -> dict[str, Any]:
            return (self._live or self.train)(batches)

        return run

    def train(self, batches: Sequence[Batch]) -> dict[str, Any]:
        """Trains on one batch, a step; returns the logs."""
        assembly = self.assembly
        assert assembly is not None
        doing, began = f"rank {self.engine.rank} trains a step", time.monotonic()
        kept = [(v, v.numpy()) for v in changed_by_forward(self.model)] if assembly.skips else []
        with explaining_lack_of_memory(doing, lambda: assembly.planned):
            self.ran = assembly.step(batches[0], self._record.after_forward)
        logs = self._record.logs()
        self._patience.took(time.monotonic() - began, is_first=not self._has_trained)
        self._has_trained = True
        if self.watch.skipping is not None:
            self.watch.skipping.note(tf.constant(value=not assembly.update.was_skipped))
            if assembly.update.was_skipped:
                for variable, value in kept:
                    variable.assign(value)
                logs = {name: self._last_logs.get(name, 0.0) for name in logs}
            self._last_logs = logs
        notices = self.watch.notices.own()
        codes = self._record.begin_codes(assembly.update.not_finite, notices)
        self.watch.note(codes, self._record.checked, 1, logs)
        return logs

    # Evaluation

    def evaluation(self, first_batch: Callable[[], Batch] | None) -> Evaluation:
        """What evaluates and predicts through the stages; see :class:`Strategy`."""
        if first_batch is None:
            if self.assembly is None:
                raise UserError(
                    f"model {self.model.name} has no stages yet, which are made for a batch with "
                    "targets; call fit or evaluate before predict"
                )
        elif self._has_no_stages():
            with self.engine.agreed():
                batch = first_batch()
            self.plan(whole_microbatches(batch, self.parallel.microbatches))
            self._is_for_training = False
        assert self.assembly is not None
        if self._evaluation is None:
            self._evaluation = Evaluation(self.assembly, self.engine, self._patience)
        return self._evaluation

    # What ranks know of the model

    def build(self, batch: Batch) -> None:
        """Builds metrics, and the optimizer without memory for its state; once for each plan."""
        if self.assembly is not None:
            return
        self.holding.build_optimizer(is_sharded=self.parallel.shard_optimizer)
        with standing_in(self.model.variables, with_memory=False):
            build_with(self.model, batch)

    def broadcast_weights(self) -> None:
        """Makes the copies of each weight the same; see :meth:`Holding.agree`."""
        self.holding.agree()

    def synchronize(self) -> None:
        """Averages statistics over the replicas."""
        average_statistics(self.holding.weights, self.ranks)

    def check_replicas(self) -> None:
        """Checks all copies of each weight, in other pipelines and in other stages."""
        check_weights(self.holding.weights, self.ranks)

    def follow_rank_0(self, *, with_optimizer: bool = False) -> bool:
        """Refuses weights that some ranks alone have set: rank 0 has those of its stages only."""
        self.holding.check_set_together()
        return False

    def whole(
        self, root: int | None = None, *, returns: bool = False
    ) -> AbstractContextManager[None]:
        return self.holding.whole(root, returns=returns)

    def starting_on_rank_0(self) -> AbstractContextManager[None]:
        return self.holding.starting_on_rank_0()
