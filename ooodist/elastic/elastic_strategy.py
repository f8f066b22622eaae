"""Elastic training: wraps another strategy, and trains only the weights that matter.

::

    Elastic ──> Controller     when to select, and what
            ──> Selective      a strategy that can train a selection: SelectiveDataParallel,
                               SelectivePipeline
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np

from ooodist.elastic.auto.fall_meter import FallMeter, check_loss
from ooodist.elastic.auto.prospect import Prospect
from ooodist.elastic.auto.rounds import AutoRho
from ooodist.elastic.controller import Controller, Mask, Measure
from ooodist.elastic.cost_model import CostModel
from ooodist.elastic.optimizer_state import OptimizerState, countable_optimizers
from ooodist.elastic.selection.fixed import FIXED
from ooodist.elastic.step_meter import StepMeter
from ooodist.elastic.weights import always_selected, shares
from ooodist.profiler import folder as profiles
from ooodist.step.all_ranks.objects import text_of_rank
from ooodist.step.backward import variable_names
from ooodist.step.execution import Batch, Run
from ooodist.trainer.strategy import LookAhead, Strategy
from ooodist.trainer.trial import timed
from ooodist.trainer.watchdog import expect_longer, expect_usual

logger = logging.getLogger("ooodist")


class Selective(Protocol):
    """A strategy that elastic training can wrap, with what it needs of it.

    Attributes:
        inner: that strategy.
        needs_plan: whether it has to be planned for reasons other than a new ``compile``.
        exchanges: whether a weight's gradients are exchanged between ranks.
        begins_in_full: whether the wrapped strategy can train before anything is planned.
    """

    begins_in_full: bool

    @property
    def inner(self) -> Strategy: ...

    @property
    def needs_plan(self) -> bool: ...

    @property
    def exchanges(self) -> bool: ...

    def plan(
        self, batch: Batch, total_steps: int | None
    ) -> tuple[CostModel, OptimizerState, Measure]:
        """Plans; returns costs of selections, optimizer state, and what measures importance."""

    def select(self, mask: Mask) -> None:
        """Trains only these weights from now on."""

    def runner(self) -> Run:
        """What trains the selected weights on the batches of a call."""

    def synchronize(self) -> None:
        """See :meth:`Strategy.synchronize`."""


class Elastic(Strategy):
    """A strategy that trains a selection of the weights.

    Args:
        selective: the wrapped strategy, which is not used by itself.
        not_copied: the names of the weights that a warm start of the model has not copied.

    Attributes:
        selective: as given.
        config: what is selected, and how often.
        controller: selects; None until the first batch is known, and, with ``rho: auto``, until
            the training is long enough.
    """

    def __init__(
        self, selective: Selective, not_copied: Callable[[keras.Model], frozenset[str]]
    ) -> None:
        inner = selective.inner
        super().__init__(inner.model, inner.engine, inner.training)
        assert inner.training.elastic is not None
        self.config = inner.training.elastic
        self.selective = selective
        self.watch = inner.watch
        self.carrying = inner.carrying
        self.has_whole_model = inner.has_whole_model
        self.has_whole_optimizer = inner.has_whole_optimizer
        self._not_copied = not_copied
        self.controller: Controller | None = None
        self._meter = StepMeter()
        self._fall = FallMeter()
        self._extra = 0.0  # seconds of measuring, selecting and tracing in this stretch
        self._planned_for: tuple[Any, ...] = ()
        self._updates = 0  # in full, before planning
        self._resumed: dict[str, Any] | None = None  # what was selected, for planning
        self._prospect: Prospect | None = None
        is_auto = self.config.rho == "auto" and self.config.select not in FIXED
        if is_auto and selective.begins_in_full:
            self._prospect = Prospect(self.engine, self._has_profile)

    @property
    def inner(self) -> Strategy:
        """The wrapped strategy."""
        return self.selective.inner

    @property
    def shard(self) -> tuple[int, int]:
        return self.inner.shard

    @property
    def reads_data(self) -> bool:
        """As in the wrapped strategy."""
        return self.inner.reads_data

    # Planning

    @property
    def needs_plan(self) -> bool:
        """Whether nothing was measured yet, or the model was compiled again since."""
        return self._prospect is None and (
            self.controller is None
            or self.selective.needs_plan
            or self.was_compiled_since(self._planned_for)
        )

    def _has_profile(self) -> bool:
        return profiles.is_kept(self.training.planning, self.model.name, self.engine)

    def plan(self, batch: Batch, total_steps: int | None = None) -> None:
        """Measures model, network and the costs of selections; fit calls this itself."""
        began = time.monotonic()
        cost_model, optimizer_state, measure = self.selective.plan(batch, total_steps)
        rho, select = self.config.rho, self.config.select
        if self.engine.rank == 0 and total_steps and rho != "auto" and select == "importance":
            warn_if_short(cost_model, rho, total_steps, time.monotonic() - began)
        self.steps_per_execution = self.inner.steps_per_execution
        self._fall = FallMeter(total_steps)
        self._planned_for = self.compiled
        with self.engine.agreed():
            self.controller = Controller(
                self.config,
                self.model,
                self.engine,
                cost_model,
                optimizer_state,
                measure,
                self._not_copied(self.model),
            )
        self.watch.begin()  # steps that were measured do not count

    def write_plan(self, folder: Path) -> None:
        """Writes the plan of the wrapped strategy."""
        self.inner.write_plan(folder)

    def close(self) -> None:
        self.inner.close()

    def build(self, batch: Batch) -> None:
        self.inner.build(batch)

    def broadcast_weights(self) -> None:
        self.inner.broadcast_weights()

    def check_replicas(self) -> None:
        self.inner.check_replicas()

    def follow_rank_0(self, *, with_optimizer: bool = False) -> bool:
        return self.inner.follow_rank_0(with_optimizer=with_optimizer)

    def whole(
        self, root: int | None = None, *, returns: bool = False
    ) -> AbstractContextManager[None]:
        return self.inner.whole(root, returns=returns)

    def starting_on_rank_0(self) -> AbstractContextManager[None]:
        return self.inner.starting_on_rank_0()

    # Training

    @property
    def _selector(self) -> Controller:
        """The controller, which must exist by now."""
        assert self.controller is not None
        return self.controller

    def before_call(self, batches: Sequence[Batch], look_ahead: LookAhead) -> None:
        """Selects, if it is due."""
        if self._prospect is not None:
            if not self._updates:  # what would fail later fails now
                countable_optimizers(self.model)
                always_selected(self.config, variable_names(self.model.trainable_variables))
            left = None if self.left is None else self.left // self.accumulate
            if self._resumed is None and not self._prospect.is_worth(left):
                return
            self._plan_in_training(batches[0], left)
        elif self.needs_plan:  # train_on_batch was called without fit
            self.plan(batches[0])
        controller = self._selector
        if controller.auto is not None and (fall := self._fall.ended()) is not None:
            self._end_stretch(controller.auto, fall)
        if controller.is_to_check:
            controller.check(self._meter)
        began, is_due = time.perf_counter(), controller.is_due
        if is_due:
            self.flush()  # what is measured, and reset, has all its updates
            wanted = max(self.config.batches, self.accumulate)
            more = look_ahead(max(0, wanted - len(batches)))
            found = [*batches, *more][:wanted]
            number = int(self.engine.all_reduce(np.array([len(found)]), "min")[0])
            controller.renew(found[:number])
            self._meter.interrupted()
        assert controller.mask is not None
        self.selective.select(controller.mask)
        if is_due:
            self._extra += time.perf_counter() - began

    def _plan_in_training(self, batch: Batch, left: int | None) -> None:
        """Plans after steps in full; what that takes counts as lost."""
        expect_longer("measuring for elastic training began")
        prospect, self._prospect = self._prospect, None
        assert prospect is not None
        began = time.perf_counter()
        self.flush()
        self.plan(batch, left)
        expect_usual("measuring for elastic training ended")
        controller = self._selector
        controller.count(self._updates)
        if self._resumed is not None:
            controller.restore(self._resumed)
        elif controller.auto is not None:
            own = np.array([prospect.trained, time.perf_counter() - began, prospect.first])
            trained, took, trace = self.engine.all_reduce(own, "max").tolist()
            controller.auto.begin(trained, took + trace)  # the step in full is traced anew
            logger.info("elastic: measured in %.1f s", took)

    def _end_stretch(self, auto: AutoRho, fall: float) -> None:
        """Chooses rho for the next steps; all ranks do as rank 0 has found.

        Args:
            auto: the controller's.
            fall: of the loss, per update, the same on all ranks.
        """
        controller, extra = self._selector, self._extra
        self._extra = 0.0

        def chosen() -> str:
            assert controller.mask is not None
            seconds, found = self._meter.median(controller.mask.digest), ""
            if seconds is not None:
                if auto.rho == 1:
                    controller.pace.full_now = seconds
                left = (self.left or 0) // self.accumulate * controller.pace.full_step
                found = auto.end(fall / seconds, self._fall.updates * seconds, extra, left)
            return json.dumps([auto.state(), found])

        state, found = json.loads(text_of_rank(self.engine, chosen))
        auto.restore(state)
        if found:
            logger.info("elastic: rho auto: %s; the smallest that pays: %g", found, auto.smallest)

    def runner(self) -> Run:
        full = None if self._prospect is None else self.inner.runner()
        run = None if full else self.selective.runner()

        def train(batches: Sequence[Batch]) -> dict[str, Any]:
            nonlocal run
            updates = len(batches) // self.accumulate
            if self._prospect is not None:
                assert full is not None
                seconds = None
                if self._prospect.is_timing:
                    logs, seconds = timed(full, batches)
                else:
                    logs = full(batches)
                check_loss(logs)
                self._prospect.ran(updates, seconds)
                self._updates += updates
                return logs
            run = run or self.selective.runner()  # with as many steps a call as were planned
            controller = self._selector
            assert controller.mask is not None
            began, digest = time.perf_counter(), controller.mask.digest
            logs = run(batches)
            controller.count(updates)
            if self._meter.is_first(digest):
                self._extra += time.perf_counter() - began
            self._meter.launched(digest, updates)
            if controller.auto is not None:
                self._fall.ran(updates, logs)
            return logs

        return train

    def synchronize(self) -> None:
        self.selective.synchronize()

    def end_epoch(self, logs: dict[str, Any]) -> None:
        """Tells the controller, and adds its values to the logs."""
        if self._prospect is not None:
            logs.update(shares(self.model, None, self.selective.exchanges))
            return
        self._selector.end_epoch(logs.get("loss"))
        self._fall.end_epoch()
        if self.engine.rank == 0:
            self._selector.compare(self._meter)
        logs.update(self._selector.scalars(self._meter, self.selective.exchanges))

    # What a job saves and reports of it

    def selection(self) -> dict[str, Any] | None:
        return self._resumed if self.controller is None else self.controller.state()

    def restore_selection(self, state: dict[str, Any]) -> None:
        if self._prospect is None:
            self._selector.restore(state)
        else:  # before the next step
            self._resumed = state

    def write_report(self, folder: Path) -> list[str]:
        """Writes what was selected when, as figures and CSV; returns the names of the files."""
        if self.controller is None or not self.controller.renewals:
            return []
        from ooodist.elastic.figures import write_selection  # imports Matplotlib

        items = [item.name for item in self.controller.cost_model.choice.items]
        return write_selection(folder, items, self.controller.renewals)


def warn_if_short(cost_model: CostModel, rho: float, steps: int, measured_for: float) -> None:
    """Warns if a training is so short that elastic cannot save the time that it took to measure.

    Args:
        cost_model: costs of selections.
        rho: the time that a step may take, as a share of a full one.
        steps: updates of the training.
        measured_for: seconds.
    """
    full = steps * cost_model.seconds(range(len(cost_model.choice.items)))
    if (1 - rho) * full < measured_for:
        logger.warning(
            "elastic: to measure took %.0f s, and rho %g saves at most %.1f s of the %.1f s that "
            "these %d steps take in full; train longer, or leave elastic out",
            measured_for,
            rho,
            (1 - rho) * full,
            full,
            steps,
        )
