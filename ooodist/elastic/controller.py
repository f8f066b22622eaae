"""Decides when the selection is renewed, and what is selected: the same on all ranks.

::

    measure on each rank -> mean over the ranks -> rank 0 selects -> all get its selection,
    with a version and a digest that are compared before it is used

The selection changes between two calls, when nothing is in flight.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from ooodist.elastic.auto.rounds import LADDER, AutoRho
from ooodist.elastic.cost_model import CostModel, Solver
from ooodist.elastic.importance import Measured, by_item, rank_correlation
from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.elastic.pace import Pace
from ooodist.elastic.selection.fixed import FIXED, fixed_weights
from ooodist.elastic.selection.select import select
from ooodist.elastic.step_meter import StepMeter
from ooodist.elastic.weights import always_selected, shares
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.settings.elastic import ElasticConfig
from ooodist.step.all_ranks.objects import text_of_rank
from ooodist.trainer.watchdog import expect_longer
from ooodist.util.digest import hex_digest

logger = logging.getLogger("ooodist")

KEPT_ABOVE = 0.05  # of the budget: measured costs differ a little from run to run
MOST_OVER_RHO = 0.25  # a measured rho that is larger by this share is told
CHECKED_AFTER = 20  # updates with a selection, to measure rho
MOST_CORRECTIONS = 2  # of a training; each may trace another step
PLATEAU = 0.01  # by how much, relatively, an epoch's loss must improve on the best so far

Measure = Callable[[Sequence[Any]], Measured]  # batches -> how much each weight matters


@dataclass(frozen=True)
class Mask:
    """The weights that are trained.

    Attributes:
        version: the number of the renewal that selected them, from 1.
        weights: their names.
    """

    version: int
    weights: frozenset[str]

    @property
    def digest(self) -> str:
        """A hash of the weights' names."""
        return hex_digest("\n".join(sorted(self.weights)), 16)


@dataclass(frozen=True)
class Renewal:
    """One selection, for reports.

    Attributes:
        step: the number of updates before it.
        selected: indices of the selected items.
        importance: importance of all items, smoothed.
        predicted: seconds of a step.
        correlation: rank correlation of the importance with the previous one's, -1 to 1.
        changed: whether it differs from the previous selection.
        seconds: seconds of measuring and selecting.
    """

    step: int
    selected: tuple[int, ...]
    importance: tuple[float, ...]
    predicted: float
    correlation: float | None
    changed: bool
    seconds: float


@dataclass
class Controller:
    """Selects which weights are trained, on all ranks together.

    Args:
        config: the job's settings.
        model: built.
        engine: the engine in use.
        cost_model: costs of selections; the same on all ranks.
        optimizer_state: optimizer state of the weights that this rank trains.
        measure: measures how much the weights matter, on this rank's next batches.
        not_copied: names of the weights that a warm start has not copied.
        solver: finds the most important items that fit a budget.

    Attributes:
        mask: the current selection; None before the first.
        renewals: all selections so far.
        auto: chooses rho; None if it is given.
        pace: how long steps take with a selection.

    Raises:
        UserError: ``always`` names no weight of the model, or rho is too small; on all ranks.
    """

    config: ElasticConfig
    model: keras.Model
    engine: Engine
    cost_model: CostModel
    optimizer_state: OptimizerState
    measure: Measure
    not_copied: frozenset[str] = frozenset()
    solver: Solver = select
    mask: Mask | None = None
    renewals: list[Renewal] = field(default_factory=list)

    def __post_init__(self) -> None:
        choice = self.cost_model.choice
        always = always_selected(self.config, choice.weights(range(len(choice.items))))
        self._forced = frozenset(choice.head) | choice.numbers(always)
        self._not_copied = choice.numbers(self.not_copied)
        self._all = range(len(choice.items))
        self.full_seconds = self.cost_model.seconds(self._all)
        self._importance: np.ndarray | None = None
        self._steps = 0
        self._steps_at_renewal = 0
        self._epochs = 0
        self._epochs_since_renewal = 0
        self._best_loss = np.inf
        self._on_plateau = False
        self._slow: Mask | None = None  # that it was warned of
        self._rho_of_mask = 0.0
        self._check_at: int | None = None  # steps, when rho is measured; None: it was
        self._is_missed = False
        self.auto: AutoRho | None = None
        self._check_rho()
        self.pace = Pace(self.full_seconds)

    @property
    def rho(self) -> float:
        """The time that a step may take now, as a share of a full step's."""
        if self.auto is not None:
            return self.auto.rho
        return 1.0 if self.config.rho == "auto" else self.config.rho  # a fixed selection has none

    def _check_rho(self) -> None:
        if self.config.select in FIXED:
            logger.info("elastic: rho does not count for select: %s", self.config.select)
            return
        least = self.cost_model.seconds(self._forced) / self.full_seconds
        if self.config.rho == "auto":
            self.auto = AutoRho(tuple(rho for rho in LADDER if rho >= least))
            if not self.auto.ladder:
                logger.info("elastic: rho auto: all is trained, as %.2f of a step must be", least)
        elif self.config.rho < least:
            names = sorted(self.cost_model.choice.items[number].name for number in self._forced)
            shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise UserError(
                f"elastic.rho is {self.config.rho:g}, but the forward pass and what is always "
                f"trained ({shown}) take {least:.3f} of a full step here; the smallest feasible "
                f"rho is {np.ceil(least * 1e3) / 1e3:g}"
            )

    # When

    @property
    def is_due(self) -> bool:
        """Whether a selection is due before the next step."""
        if self.mask is None:
            return True
        if self.config.select in FIXED:
            return False
        is_other_rho = self.auto is not None and self._rho_of_mask != self.rho
        return is_other_rho or self._is_missed or self._measures

    @property
    def _measures(self) -> bool:
        """Whether importance is measured for the next selection."""
        if self.rho == 1:  # of ``auto``: all is trained
            return False
        if self._importance is None:
            return True
        number, unit = self.config.interval
        if unit == "step":
            return self._steps - self._steps_at_renewal >= number
        return self._on_plateau if unit == "plateau" else self._epochs_since_renewal >= number

    def count(self, updates: int) -> None:
        """Counts this many updates."""
        self._steps += updates

    def end_epoch(self, loss: float | None) -> None:
        """Ends an epoch, with its training loss, which is the same on all ranks."""
        self._epochs += 1
        self._epochs_since_renewal += 1
        if loss is not None:
            self._on_plateau = loss > self._best_loss * (1 - PLATEAU)
            self._best_loss = min(self._best_loss, loss)

    # What

    def renew(self, batches: Sequence[Any]) -> None:
        """Selects anew; all ranks call it before the same step.

        Args:
            batches: the next batches of this rank.
        """
        expect_longer("an elastic renewal began")
        began = time.perf_counter()
        measures = self._measures or (self.auto is None and not self._is_missed)
        known = np.ones(len(self._all)) if self._importance is None else self._importance
        values = self._values(batches) if measures else known
        decided = json.loads(text_of_rank(self.engine, lambda: json.dumps(self._decide(values))))
        before = self.mask
        weights = frozenset(decided["weights"])
        changed = before is None or weights != before.weights
        self.mask = Mask(1 if before is None else before.version + 1, weights)
        self.engine.check_equal(
            "the selection of tensors", f"{self.mask.version} {self.mask.digest}"
        )
        if before is not None:
            self.optimizer_state.reset(before.weights - weights)
        self._rho_of_mask, self._is_missed = self.rho, False
        self._check_at = self._steps + CHECKED_AFTER
        if measures:
            self._importance = np.array(decided["importance"])
            self._steps_at_renewal, self._epochs_since_renewal = self._steps, 0
            self._on_plateau = False
        selected = self.cost_model.choice.numbers(weights)
        renewal = Renewal(
            step=self._steps,
            selected=tuple(sorted(selected)),
            importance=tuple(decided["importance"]),
            predicted=self.full_seconds * self.pace.share(self.cost_model.seconds(selected)),
            correlation=decided["correlation"] if measures else None,
            changed=changed,
            seconds=time.perf_counter() - began,
        )
        self.renewals.append(renewal)
        self._log(renewal)

    @property
    def is_to_check(self) -> bool:
        """Whether it is time to compare the seconds of steps with those that were predicted."""
        return (
            self.auto is None
            and self.config.select not in FIXED
            and self._check_at is not None
            and self._steps >= self._check_at
            and self.pace.corrections < MOST_CORRECTIONS
        )

    def check(self, meter: StepMeter) -> None:
        """Makes another selection due if steps take not as long as predicted; all ranks call it."""
        assert self.mask is not None
        weights, digest = self.mask.weights, self.mask.digest
        pace, steady = self.pace, meter.steady(digest)
        text = text_of_rank(self.engine, lambda: json.dumps(pace.measured_now(steady)))
        rho = json.loads(text)  # of rank 0
        # On a busy machine it is looked at more and more rarely.
        self._check_at = None if rho is not None else self._steps + max(self._steps, CHECKED_AFTER)
        modeled = self.cost_model.seconds(self.cost_model.choice.numbers(weights))
        self._is_missed = rho is not None and pace.correct(rho, modeled)

    def _values(self, batches: Sequence[Any]) -> np.ndarray:
        """Each item's importance, the mean over all ranks; ones where it is not used."""
        choice = self.cost_model.choice
        if self.config.select in FIXED:
            return np.ones(len(choice.items))
        found, _, computing = self.measure(batches)
        if computing is not None:
            exchange = self.full_seconds - choice.full_seconds
            self.pace.full_now = computing + max(0.0, exchange)
        names = sorted(choice.weights(self._all))
        mean = self.engine.all_reduce(np.array([found.get(n, 0.0) for n in names]), "mean")
        return by_item(choice, dict(zip(names, mean.tolist(), strict=True)))

    def _decide(self, values: np.ndarray) -> dict[str, Any]:
        """Decides on rank 0 what all ranks are to train; returns it as plain values."""
        config, choice, old = self.config, self.cost_model.choice, self._importance
        correlation = None
        if old is not None:
            correlation = rank_correlation(old.tolist(), values.tolist())
            values = config.smoothing * old + (1 - config.smoothing) * values
        importance = values.tolist()
        values = self._not_copied_first(values)
        if config.select in FIXED:
            weights = fixed_weights(config.select, self.model, choice)
        elif self.rho == 1:
            weights = choice.weights(self._all)
        else:
            budget = max(self.pace.budget(self.rho), self.cost_model.seconds(self._forced))
            selected = self.cost_model.select(self.solver, values.tolist(), budget, self._forced)
            if self.mask is not None:
                present = choice.numbers(self.mask.weights)
                gain = values[list(selected)].sum() - values[list(present)].sum()
                fits = self._forced <= present and (
                    self.cost_model.seconds(present) <= budget * (1 + KEPT_ABOVE)
                )  # the present one may be from a checkpoint with another rho
                if fits and gain <= config.keep * values.clip(0).sum():
                    selected = present  # not worth tracing another step
            weights = choice.weights(selected)
        return {
            "weights": sorted(weights),
            "importance": importance,
            "correlation": correlation,
        }

    def _not_copied_first(self, values: np.ndarray) -> np.ndarray:
        """Ranks what a warm start has not copied before all else, for some epochs.

        New units must learn something before their importance can be measured, and a copy that is
        never trained stays a copy. As they may exceed the budget, they are not forced: each gets
        more importance than all others together, and the more the higher its own.
        """
        first = sorted(self._not_copied)
        if not first or self._epochs >= self.config.not_copied_epochs:
            return values
        positive = values.clip(0)
        raised = values.copy()
        raised[first] = len(values) * (positive[first] + (positive.mean() or 1.0))
        return raised

    def _log(self, renewal: Renewal) -> None:
        choice = self.cost_model.choice
        logger.info(
            "elastic: selection %d at step %d: %d of %d items%s, predicted %.1f ms a step, %.3f "
            "of a full one%s; took %.1f s",
            len(self.renewals),
            renewal.step,
            len(renewal.selected),
            len(choice.items),
            "" if renewal.changed else " as before",
            renewal.predicted * 1e3,
            renewal.predicted / self.full_seconds,
            ""
            if renewal.correlation is None
            else f", rank correlation with the last {renewal.correlation:.2f}",
            renewal.seconds,
        )

    def compare(self, meter: StepMeter) -> None:
        """Warns, once for each selection, if its steps take longer than was asked for."""
        rho = self._measured_rho(meter)
        if rho is None or self.config.select in FIXED or self._slow is self.mask:
            return
        if self.auto is None and rho > self.rho * (1 + MOST_OVER_RHO):
            self._slow, full = self.mask, self.pace.full_step
            logger.warning(
                "elastic: a step takes %.1f ms, %.2f of a full one (%.1f ms when it was measured), "
                "where rho %g was asked for; other programs on this machine, and parts of a step "
                "that no selection changes, can be the reason",
                rho * full * 1e3,
                rho,
                full * 1e3,
                self.rho,
            )

    def _measured_rho(self, meter: StepMeter) -> float | None:
        """How long steps of the selection take, of a full one; None: not known yet."""
        return self.pace.measured(None if self.mask is None else meter.median(self.mask.digest))

    # Reports and checkpoints

    def scalars(self, meter: StepMeter, exchanges: bool) -> dict[str, float]:
        """Values for TensorBoard and the log of epochs: what the selection saves.

        Args:
            meter: measures how long steps take.
            exchanges: whether a weight's gradients are exchanged between ranks.
        """
        assert self.mask is not None
        scalars = shares(self.model, self.mask.weights, exchanges)
        rho = self._measured_rho(meter)
        if rho is not None:
            scalars["elastic_rho"] = rho
        return scalars

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` takes, as plain values."""
        return {
            "version": 0 if self.mask is None else self.mask.version,
            "weights": [] if self.mask is None else sorted(self.mask.weights),
            "importance": None if self._importance is None else self._importance.tolist(),
            "counts": self.optimizer_state.state(),
            "steps": [self._steps, self._steps_at_renewal, self._epochs_since_renewal],
            "epochs": self._epochs,
            "best_loss": None if np.isinf(self._best_loss) else float(self._best_loss),
            "on_plateau": bool(self._on_plateau),
            "renewals": [vars(renewal) for renewal in self.renewals],
            "auto": None if self.auto is None else self.auto.state(),
            "rho": self._rho_of_mask,
            "saving": self.pace.saving,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a checkpoint."""
        if state["version"]:
            self.mask = Mask(state["version"], frozenset(state["weights"]))
            known = state["importance"]
            self._importance = None if known is None else np.array(known)
        self.optimizer_state.restore(state["counts"])
        self._steps, self._steps_at_renewal, self._epochs_since_renewal = state["steps"]
        self._epochs = state["epochs"]
        self._best_loss = np.inf if state["best_loss"] is None else state["best_loss"]
        self._on_plateau = state["on_plateau"]
        if self.auto is not None and state.get("auto"):
            self.auto.restore(state["auto"])
        # Older checkpoints have neither.
        self.pace.saving = state.get("saving", 1.0)
        self._rho_of_mask = state.get("rho", 0.0)
        self._check_at = self._steps + CHECKED_AFTER
        self.renewals = [
            Renewal(**{**r, "selected": tuple(r["selected"]), "importance": tuple(r["importance"])})
            for r in state["renewals"]
        ]
