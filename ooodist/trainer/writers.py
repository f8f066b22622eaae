"""Selects which Keras callbacks run on a rank: those that write or report run on rank 0 alone.

Where no rank has the whole model and optimizer, rank 0 gets them while a callback saves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ooodist.compat.keras_model import restored_epoch, set_restored_epoch
from ooodist.errors import UserError
from ooodist.trainer.strategy import Strategy

logger = logging.getLogger("ooodist")

# Not all versions of Keras have OrbaxCheckpoint.
SAVERS = tuple(
    getattr(keras.callbacks, name)
    for name in ("BackupAndRestore", "ModelCheckpoint", "OrbaxCheckpoint")
    if hasattr(keras.callbacks, name)
)
LOGGERS = (keras.callbacks.CSVLogger, keras.callbacks.RemoteMonitor, keras.callbacks.TensorBoard)
WRITERS = (*SAVERS, *LOGGERS)

RANK_0_ONLY = "ooodist_rank_0_only"  # an attribute with which a callback says where it runs
# Packages whose callbacks open a run, a file or a progress bar each.
REPORTERS = frozenset(
    (
        *("aim", "clearml", "comet_ml", "dvclive", "livelossplot", "mlflow", "neptune"),
        *("neptune_tensorflow_keras", "swanlab", "tqdm", "trackio", "wandb"),
    )
)
_KNOWN_PACKAGES = ("keras", "ooodist")  # whose callbacks run where docs/start.md says
_said: set[str] = set()  # what the log has


def is_for_rank_0(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback runs on rank 0 alone: as it says itself, or if it writes or reports."""
    said = getattr(callback, RANK_0_ONLY, None)
    if isinstance(callback, SAVERS) or said is None:
        packages = {kind.__module__.partition(".")[0] for kind in type(callback).__mro__}
        return isinstance(callback, WRITERS) or not packages.isdisjoint(REPORTERS)
    return bool(said)


class OfRank0(keras.callbacks.Callback):
    """Stands for one that only rank 0 has, and that saves; other ranks have a part in that.

    Args:
        restores: whether it restores, too.
    """

    def __init__(self, *, restores: bool) -> None:
        super().__init__()
        self.restores = restores


class RestoreTogether(keras.callbacks.Callback):
    """Broadcasts what rank 0's BackupAndRestore has restored; runs right behind it."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__()
        self._strategy = strategy

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        own = restored_epoch(model)
        given = np.array([-1 if own is None else own])
        epoch = int(self._strategy.engine.broadcast([given])[0][0])
        if epoch < 0:
            return  # there was no backup
        set_restored_epoch(model, epoch)
        if not model.optimizer.built:  # rank 0's was built like this before it was loaded
            model.optimizer.build(model.trainable_variables)
        # Now, as the first step may never come.
        self._strategy.broadcast_weights()


class OnWholeModel(keras.callbacks.Callback):
    """Runs a callback that saves or restores on rank 0, which has the whole model meanwhile.

    Args:
        callback: the callback; None on other ranks.
        strategy: knows who has what.
        restores: whether the callback also sets weights when the training begins.
    """

    def __init__(
        self, callback: keras.callbacks.Callback | None, strategy: Strategy, *, restores: bool
    ) -> None:
        super().__init__()
        self._callback = callback or keras.callbacks.Callback()  # which does nothing
        self._strategy = strategy
        self._restores = restores

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._callback.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._restores:
            self._callback.on_train_begin(logs)
            return
        with self._strategy.whole(root=0, returns=True):
            self._callback.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._callback.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        with self._strategy.whole(root=0):
            self._callback.on_epoch_end(epoch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._callback.on_train_end(logs)


def on_this_rank(
    callbacks: Sequence[keras.callbacks.Callback], strategy: Strategy
) -> list[keras.callbacks.Callback]:
    """The user's callbacks that this rank runs, in their order."""
    engine = strategy.engine
    own: list[keras.callbacks.Callback] = []
    for callback in callbacks:
        stands_in = isinstance(callback, OfRank0)
        saves = isinstance(callback, SAVERS) or stands_in
        restores = isinstance(callback, keras.callbacks.BackupAndRestore) or (
            isinstance(callback, OfRank0) and callback.restores
        )
        if saves and not strategy.has_whole_optimizer:
            on_rank_0 = callback if engine.rank == 0 else None
            own.append(OnWholeModel(on_rank_0, strategy, restores=restores))
        elif engine.rank == 0 or not (stands_in or is_for_rank_0(callback)):
            own.append(callback)
        if restores and engine.size > 1:
            own.append(RestoreTogether(strategy))
    if engine.rank == 0 and engine.size > 1:
        _say_where_they_run(callbacks)
    return own


def _say_where_they_run(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Logs once which callbacks of others run on rank 0 alone, and how to change that."""
    others = [
        each for each in callbacks if type(each).__module__.partition(".")[0] not in _KNOWN_PACKAGES
    ]
    alone = {type(each).__name__ for each in others if is_for_rank_0(each)}
    everywhere = {type(each).__name__ for each in others if not is_for_rank_0(each)}
    parts = [f"{', '.join(sorted(alone))} run on rank 0 alone"] if alone else []
    if everywhere:
        parts.append(
            f"{', '.join(sorted(everywhere))} on every rank; with the attribute {RANK_0_ONLY} = "
            "True on rank 0 alone, which is right for what writes or reports"
        )
    text = f"fit: callbacks: {'; '.join(parts)}"
    if parts and text not in _said:
        _said.add(text)
        logger.info("%s", text)


def check_saves_at_ends_of_epochs(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises UserError if a callback saves in the middle of an epoch."""
    for callback in callbacks:
        every = getattr(callback, "save_freq", "epoch")
        if isinstance(callback, SAVERS) and every != "epoch":
            raise UserError(
                f"{type(callback).__name__} has save_freq={every!r}, but rank 0 gets what other "
                'ranks have at the end of an epoch only; take save_freq="epoch"'
            )


def refuse_swapping(callbacks: Sequence[keras.callbacks.Callback], setting: str) -> None:
    """Raises UserError if a callback needs averages of all weights, which the setting divides."""
    if any(isinstance(callback, keras.callbacks.SwapEMAWeights) for callback in callbacks):
        raise UserError(
            f"SwapEMAWeights swaps weights and their averages, but with {setting} the averages of "
            "a weight are on one of the ranks that have it; leave the one or the other out"
        )
