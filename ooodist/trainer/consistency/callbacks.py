"""Makes callbacks that only some ranks were given work on all of them together.

Programs for Horovod give rank 0 alone what stops, saves and logs::

    rank 0 was given               rank 1 was given     what rank 1 runs
    EarlyStopping(patience=2)      nothing              EarlyStopping(patience=2)
    ModelCheckpoint, Backup…       nothing              its part in what all ranks do for them
    one of the user's own          nothing              nothing; it follows rank 0 afterwards

Which ones there are is gathered once per ``fit``, and where all ranks have the same, nothing more
is done. Otherwise the order of rank 0 counts, and so do its learning rate and weights.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np

from ooodist.errors import UserError
from ooodist.step.optimizer import optimizers_of
from ooodist.trainer import writers
from ooodist.trainer.readers import runs_per_batch
from ooodist.trainer.strategy import Strategy

logger = logging.getLogger("ooodist")

# What decides by logs, which are the same on all ranks, and the arguments to make it anew.
_OF_MONITOR = ("monitor", "mode", "min_delta", "patience")
_REPEATED = {
    "EarlyStopping": (*_OF_MONITOR, "baseline", "restore_best_weights", "start_from_epoch"),
    "ReduceLROnPlateau": (*_OF_MONITOR, "factor", "cooldown", "min_lr"),
    "SwapEMAWeights": ("swap_on_epoch",),
    "TerminateOnNaN": (),
}


@dataclass(frozen=True)
class Given:
    """A callback of some rank, as others see it.

    Attributes:
        kind: module and name of its class.
        arguments: with which it is made anew on other ranks; None: it is not.
        is_for_rank_0: whether it runs on rank 0 alone.
        only_logs: whether it changes nothing that is trained.
        saves, restores: whether all ranks have a part in what it does.
        runs_per_batch: whether it may stop the training in the middle of an epoch.
    """

    kind: str
    arguments: dict[str, Any] | None
    is_for_rank_0: bool
    only_logs: bool
    saves: bool
    restores: bool
    runs_per_batch: bool

    @property
    def name(self) -> str:
        return self.kind.rpartition(".")[2]


def given_by(callback: keras.callbacks.Callback) -> Given:
    """What other ranks need to know of a callback."""
    kind, arguments = type(callback), None
    names = _REPEATED.get(kind.__name__)
    if names is not None and kind is getattr(keras.callbacks, kind.__name__, None):
        found = {name: getattr(callback, name) for name in names}
        arguments = {n: v.item() if isinstance(v, np.generic) else v for n, v in found.items()}
    return Given(
        f"{kind.__module__}.{kind.__qualname__}",
        arguments,
        writers.is_for_rank_0(callback),
        kind in writers.LOGGERS,
        isinstance(callback, writers.SAVERS),
        isinstance(callback, keras.callbacks.BackupAndRestore),
        runs_per_batch(callback),
    )


def on_all_ranks(
    callbacks: Sequence[keras.callbacks.Callback], strategy: Strategy
) -> tuple[list[keras.callbacks.Callback], Following | None]:
    """The callbacks of this rank, and what follows rank 0 if not all ranks have the same.

    All ranks call it. Those of ooodist itself know what each rank does.

    Raises:
        UserError: on all ranks, if a rank has one that counts on rank 0 alone, which lacks it.
    """
    engine = strategy.engine
    is_ours = [type(callback).__module__.startswith("ooodist.") for callback in callbacks]
    ours = [callback for callback, is_own in zip(callbacks, is_ours, strict=True) if is_own]
    theirs = [callback for callback, is_own in zip(callbacks, is_ours, strict=True) if not is_own]
    own = [given_by(callback) for callback in theirs]
    text = json.dumps([asdict(given) for given in own])
    if engine.size == 1 or not engine.ranks_that_differ(text.encode()):
        return list(callbacks), None
    of_all = [[Given(**each) for each in json.loads(row)] for row in engine.gather_text(text)]
    _refuse_what_rank_0_lacks(of_all)
    of_all = [[given for given in row if not given.only_logs] for row in of_all]
    if of_all.count(of_all[0]) == engine.size:
        return list(callbacks), None
    uneven = [given for row in of_all for given in row if not all(given in r for r in of_all)]
    first, following = of_all[0], Following(strategy, uneven)
    if engine.rank == 0:
        _say_what_differs(first, following.uneven)
        return list(callbacks), following
    left = list(zip(own, theirs, strict=True))
    found: list[keras.callbacks.Callback] = []
    for wanted in first:
        same = next((pair for pair in left if pair[0].kind == wanted.kind), None)
        if same is not None:
            left.remove(same)
        if same is not None and (wanted.arguments is None or same[0] == wanted):
            found.append(same[1])
        elif wanted.arguments is not None:
            found.append(getattr(keras.callbacks, wanted.name)(**wanted.arguments))
        elif wanted.saves:
            found.append(writers.OfRank0(restores=wanted.restores))
    found += [callback for given, callback in left if given.arguments is None]
    return [*found, *ours], following


def _refuse_what_rank_0_lacks(of_all: Sequence[Sequence[Given]]) -> None:
    known = {given.kind for given in of_all[0]}
    for rank, row in enumerate(of_all):
        for given in row:
            counts_there = given.is_for_rank_0 or given.arguments is not None
            if counts_there and given.kind not in known:
                raise UserError(
                    f"callback {given.name} was given on rank {rank} and not on rank 0, whose "
                    "own counts for all; give it there (or on all ranks)"
                )


def _say_what_differs(first: Sequence[Given], uneven: str) -> None:
    repeated = [given.name for given in first if given.arguments is not None]
    logger.info(
        "fit: not all ranks were given the same callbacks (%s): %srank 0's order, learning rate "
        "and weights count at the end of each epoch",
        uneven,
        f"{', '.join(repeated)} of rank 0 run on all; " if repeated else "",
    )


class Following:
    """Gives all ranks what callbacks have changed on rank 0.

    Args:
        strategy: knows who has which weights.
        uneven: the callbacks that not all ranks have.

    Attributes:
        uneven: their names, for messages.
        first, last: run before and after all other callbacks.
    """

    def __init__(self, strategy: Strategy, uneven: Sequence[Given]) -> None:
        self._strategy = strategy
        self.uneven = ", ".join(dict.fromkeys(given.name for given in uneven)) or "their order"
        self.first = _First(self)
        self.last = _Last(self, puts_off=any(given.runs_per_batch for given in uneven))

    def check_rates(self) -> None:
        """Raises UserError, on all ranks, if learning rates are not the same."""
        own = self._rates()
        if self._strategy.engine.ranks_that_differ(own.tobytes()):
            raise UserError(
                "the learning rate was changed in the middle of an epoch on some ranks alone, so "
                "that their steps were not the same; give what changes it to all ranks (not all "
                f"have {self.uneven})"
            )

    def follow_rates(self) -> None:
        """Sets the learning rates to those of rank 0."""
        own = self._rates()
        first = self._strategy.engine.broadcast([own])[0]
        for optimizer, rate, other in zip(self._optimizers(), own, first, strict=True):
            if rate != other:
                optimizer.learning_rate = float(other)

    def follow(self) -> None:
        """Gives all ranks rank 0's learning rates and weights."""
        self.follow_rates()
        if self._strategy.follow_rank_0(with_optimizer=True) and self._strategy.engine.rank == 0:
            logger.info("fit: weights changed on some ranks alone: rank 0's are those of all now")

    def _optimizers(self) -> list[keras.optimizers.Optimizer]:
        found = optimizers_of(self._strategy.model)
        return [
            each for optimizer in found for each in getattr(optimizer, "optimizers", [optimizer])
        ]

    def _rates(self) -> np.ndarray:
        return np.array([float(each.learning_rate) for each in self._optimizers()])


class _First(keras.callbacks.Callback):
    def __init__(self, following: Following) -> None:
        super().__init__()
        self._following = following

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._following.check_rates()


class _Last(keras.callbacks.Callback):
    """Runs last.

    Args:
        puts_off: whether some rank may want to stop in the middle of an epoch, where others would
            wait for it: then all stop at its end. (All see a loss that is not finite.)
    """

    def __init__(self, following: Following, *, puts_off: bool) -> None:
        super().__init__()
        self._following = following
        self._stops = self._has_trained = False
        if puts_off:  # else Keras need not read the logs of each batch
            self.on_train_batch_end = self._put_off

    def _put_off(self, batch: int, logs: Any = None) -> None:
        if self.model.stop_training and math.isfinite((logs or {}).get("loss", 0.0)):
            self.model.stop_training, self._stops = False, True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._following.follow_rates()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._has_trained = True
        self._following.follow()
        self.model.stop_training = self.model.stop_training or self._stops

    def on_train_end(self, logs: Any = None) -> None:
        if self._has_trained:  # else ranks may not have built the same yet
            self._following.follow()
