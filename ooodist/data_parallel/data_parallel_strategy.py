"""Data parallelism: replicas of a model whose gradients are exchanged in a chosen order.

Each replica trains on its part of the batch. A call holds several ordered steps; what else fit and
evaluate do on all ranks is in :mod:`ooodist.trainer.fit`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import keras

from ooodist.checkpoint.parallel_write import spread
from ooodist.data_parallel.planning import as_exchanged, limits_of, planned_for
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel import plan as plans
from ooodist.planner.data_parallel.named import BUCKET_BYTES
from ooodist.planner.data_parallel.plan import Plan, PlanWithCosts
from ooodist.planner.data_parallel.search import Limits
from ooodist.profiler.folder import Profile
from ooodist.profiler.storage import profile_of
from ooodist.settings.training import Training
from ooodist.step import replicas
from ooodist.step.backward import OrderedBackward
from ooodist.step.carried import Carrying, why_not_carried
from ooodist.step.exchange import GradientExchange
from ooodist.step.execution import Batch, Execution, Run, in_executions
from ooodist.step.optimizer import loss_scale, not_built
from ooodist.step.rank_state import RESIDUAL, RankState
from ooodist.step.sending import low_rank
from ooodist.step.sending.rows import RowGradients
from ooodist.step.sending.wire import ErrorFeedback
from ooodist.step.sharding.sharded import ShardedOptimizer
from ooodist.trainer.strategy import Strategy
from ooodist.trainer.watchdog import expect_longer
from ooodist.trainer.writers import refuse_swapping

logger = logging.getLogger("ooodist")

PLAN_NAME = "plan.yaml"


class DataParallel(Strategy):
    """The strategy of :func:`ooodist.distribute`.

    Attributes:
        backward: orders and exchanges gradients; ``backward.steps`` tells what was traced.
        planned: the plan that is carried out and what it was made from; None if there is none.
        low_rank: makes thin matrices of gradients; None: they always travel whole.
    """

    def __init__(self, model: keras.Model, engine: Engine, training: Training) -> None:
        super().__init__(model, engine, training)
        order = "inorder" if training.to_find else training.order
        is_narrow = training.wire != "float32" and training.exchange.error_feedback
        has_feedback = is_narrow or training.low_rank is not None
        names = [feature.name for feature in training.features]
        names += [RESIDUAL] if has_feedback else []
        names += [low_rank.OWNER] if training.low_rank is not None else []
        self.rank_state = RankState(names)
        for feature in training.features:
            feature.begin(self.rank_state)
            logger.info("feature %s", feature.summary())
        state = self.rank_state
        feedback = ErrorFeedback(lambda: loss_scale(model), state) if has_feedback else None
        self.low_rank: low_rank.LowRank | None = None
        if training.low_rank is not None and feedback is not None:
            fixed = training.low_rank if isinstance(training.low_rank, int) else None
            after = training.exchange.low_rank_after
            self.low_rank = low_rank.LowRank(state, feedback, engine.size, fixed, after)
        self.sharded: ShardedOptimizer | None = None
        if training.shard_optimizer and engine.size > 1:
            self.sharded = ShardedOptimizer(model, engine)
            self.has_whole_optimizer = False
        exchange = _exchange(engine, training, feedback, self.low_rank, self.sharded)
        self.backward = backward = OrderedBackward(exchange, order, training.k or 0)
        self.planned: PlanWithCosts | None = None
        if engine.size > 1:
            self.carrying = Carrying(engine)
        if backward.plan is not None:
            self._carry_out(PlanWithCosts(backward.plan))

    @property
    def shard(self) -> tuple[int, int]:
        return self.engine.rank, self.engine.size

    # Planning

    @property
    def needs_plan(self) -> bool:
        """Whether the order is still to be found."""
        return self.training.to_find is not None and self.planned is None

    def plan(self, batch: Batch, total_steps: int | None = None) -> None:
        self.broadcast(batch)
        self._low_rank_begins(total_steps)
        profile = self.profile(batch)
        self._find_plan(profile.costs, profile.network, profile.model, total_steps)

    def _find_plan(
        self, costs: StepCosts, network: Network, model: str, total_steps: int | None
    ) -> None:
        assert self.training.to_find is not None
        limits = self.limits(total_steps)
        self._carry_out(
            planned_for(self.training.to_find, costs, network, limits, model, self.engine)
        )

    def profile(
        self, batch: Batch, step_seconds: float | None = None, digest: str | None = None
    ) -> Profile:
        """Measures the model, which stays as it is, and the network; all ranks call it.

        Args:
            batch: one batch as the training data yields it.
            step_seconds: what a step takes now, by default; None: it has not been trained.
            digest: the model's, if it is known.
        """
        self.flush()
        profile = profile_of(
            self.model,
            batch,
            self.engine,
            self.training.planning,
            accumulate=self.accumulate,
            low_rank=self.low_rank is not None,
            step_seconds=step_seconds,
            digest=digest,
        )
        return as_exchanged(profile, self.backward.exchange.rows)

    def limits(self, total_steps: int | None = None) -> Limits:
        """The limits of the search for plans.

        Args:
            total_steps: updates of the training; None if unknown.
        """
        return limits_of(
            self.engine,
            self.training.planning,
            self.training.steps_per_execution,
            total_steps,
            carrying=self.may_carry,
            wire=self.training.wire,
            rank=self.training.low_rank if self.low_rank and self.low_rank.is_on else None,
        )

    @property
    def may_carry(self) -> bool:
        """Whether a plan that is made now may leave exchanges of a call to the next one."""
        return (
            self.carrying is not None
            and self.carrying.is_wanted
            and self._why_not_carried() is None
        )

    def _why_not_carried(self) -> str | None:
        if self.watch.skipping is not None:
            return "on_nan = skip needs all gradients of a step before its first update"
        return why_not_carried(self.model)

    def _carry_out(self, planned: PlanWithCosts) -> None:
        self.backward.carry_out(planned.plan)
        self.planned = planned
        self.steps_per_execution = planned.plan.steps_per_execution

    @property
    def predicted_seconds(self) -> float | None:
        predicted = None if self.planned is None else self.planned.plan.predicted
        return None if predicted is None else predicted.step_seconds / self.accumulate

    def write_plan(self, folder: Path) -> None:
        """Writes the plan that is carried out, if there is one."""
        if self.planned is not None:
            plans.write(self.planned.plan, folder / PLAN_NAME)

    # Training

    def runner(self) -> Run:
        run = self._runner()
        if self.low_rank is None or self.low_rank.is_on:
            return run

        def train(batches: Sequence[Batch]) -> dict[str, Any]:
            nonlocal run
            left = None if self.left is None else (self.left + len(batches)) // self.accumulate
            if self._low_rank_begins(left):
                self._plan_again(left)
                run = self._runner()
            return run(batches)

        return train

    def _runner(self) -> Run:
        """What trains on the batches of a call, with gradients in low rank only if that is on."""
        return self._in_executions_of(self.backward, self.steps_per_execution)

    def _low_rank_begins(self, left: int | None) -> bool:
        """Turns low rank on and returns True if that is due, and was not done before.

        Args:
            left: steps that are still to come; None if unknown.
        """
        done = self.watch.step
        if self.low_rank is None or self.low_rank.is_on or not self.low_rank.is_due(done, left):
            return False
        expect_longer("low rank began")
        logger.info("low rank begins at step %d", done + 1)
        self.low_rank.is_on = True
        return True

    def _plan_again(self, total_steps: int | None) -> None:
        """Replaces a plan that was found here by one for the same costs."""
        if self.planned is not None and self.planned.costs is not None:
            assert self.planned.network is not None
            costs, network, plan = self.planned.costs, self.planned.network, self.planned.plan
            self._find_plan(costs, network, plan.model, total_steps)

    def _in_executions_of(
        self, backward: OrderedBackward, steps: int, *, compiled: bool = False
    ) -> Run:
        execution = Execution(
            self.model,
            backward,
            accumulate=self.accumulate,
            watch=self.watch,
            features=self.training.features,
            compiled=compiled,
            carrying=self.carrying_for(backward.plan),
            element_spec=lambda: self.element_spec,
            sharded=self.sharded,
        )
        return in_executions(execution, steps=steps, accumulate=self.accumulate)

    def carrying_for(self, plan: Plan | None) -> Carrying | None:
        """What holds the updates that calls with this plan leave to each other.

        Raises:
            UserError: the plan was given and carries some, which this model's training cannot.
        """
        if plan is None or not plan.carried or self.carrying is None:
            return self.carrying
        reason = self._why_not_carried()
        if reason is None:
            return self.carrying
        text = (
            f"plan {plan.name} carries the exchanges of {len(plan.carried)} weights into the next "
            f"call, but {reason}"
        )
        if self.training.to_find is None:
            raise UserError(
                f"{text}; set carried of its exchanges to false, or make one for this job with "
                "python -m ooodist.plan"
            )
        logger.warning("%s: each call ends with all its exchanges", text)
        return None

    def begin_batches(self, spec: Any) -> bool:
        rows = self.backward.exchange.rows
        return rows is not None and rows.begin(spec)

    def begin_any_batch(self) -> bool:
        rows = self.backward.exchange.rows
        return rows is not None and rows.begin_any()

    # Where the optimizer is sharded

    def build(self, batch: Batch) -> None:
        if self.sharded is None:
            super().build(batch)
            return
        with not_built(self.model):  # without memory for all of its state
            super().build(batch)

    def broadcast_weights(self) -> None:
        if self.sharded is not None:
            self.sharded.hold()
        super().broadcast_weights()

    def alike_on_all(self, *, with_optimizer: bool = True) -> list[Any]:
        found = super().alike_on_all(with_optimizer=with_optimizer)
        divided = () if self.sharded is None else {id(v) for v, _ in self.sharded.state}
        return [variable for variable in found if id(variable) not in divided]

    def check_callbacks(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        if self.sharded is not None:
            refuse_swapping(callbacks, "shard_optimizer")

    def whole(
        self, root: int | None = None, *, returns: bool = False
    ) -> AbstractContextManager[None]:
        if self.sharded is None:
            return super().whole(root, returns=returns)
        return self.sharded.whole(root, returns=returns)

    def in_parts(self, *, returns: bool = False) -> AbstractContextManager[None]:
        if self.sharded is None:
            return super().in_parts(returns=returns)
        return self.sharded.in_parts(returns=returns)

    def writers(self) -> dict[int, int]:
        """Which rank writes each variable into a checkpoint in parts, by the variable's id."""
        assert self.sharded is not None
        everywhere = range(self.engine.size)
        alike = [(variable, everywhere) for variable in self.alike_on_all()]
        return spread([*alike, *((variable, (owner,)) for variable, owner in self.sharded.state)])

    def end_epoch(self, logs: dict[str, Any]) -> None:
        if self.low_rank is not None and self.engine.size > 1:
            logs["low_rank_error"] = self.low_rank.error(self.engine)

    def end_fit(self) -> None:
        if self.sharded is not None:
            self.sharded.stay_whole_on_rank_0()

    def synchronize(self) -> None:
        """Completes the weights, and averages batch-norm statistics over the ranks."""
        self.flush()
        replicas.average_statistics(self.engine, self.model)


def _exchange(
    engine: Engine,
    training: Training,
    feedback: ErrorFeedback | None,
    thin: low_rank.LowRank | None,
    sharded: ShardedOptimizer | None,
) -> GradientExchange:
    given, wire = training.exchange, training.wire
    return GradientExchange(
        engine,
        credit=given.credit,
        bucket_bytes=BUCKET_BYTES if given.bucket_bytes is None else given.bucket_bytes,
        sum_rows=not engine.kind.is_alone if training.sum_rows is None else training.sum_rows,
        wire=None if wire in ("float32", "planned") else wire,
        feedback=feedback,
        low_rank=thin,
        rows=RowGradients(engine, "" if given.rows == "auto" else "rows is never"),
        slices={} if sharded is None else sharded.slices,
    )
