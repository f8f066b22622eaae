"""Selects which Keras callbacks run on a rank: those that write run on rank 0 alone.

Where no rank has the whole model, rank 0 gets it while a callback saves.
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
WRITERS = (
    *SAVERS,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


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
    """Returns the user's callbacks that this rank runs, in their order."""
    engine = strategy.engine
    own: list[keras.callbacks.Callback] = []
    left_out: set[str] = set()
    for callback in callbacks:
        restores = isinstance(callback, keras.callbacks.BackupAndRestore)
        is_for_rank_0 = isinstance(callback, WRITERS)
        if engine.rank and is_for_rank_0:
            left_out.add(type(callback).__name__)
        if isinstance(callback, SAVERS) and not strategy.has_whole_model:
            on_rank_0 = callback if engine.rank == 0 else None
            own.append(OnWholeModel(on_rank_0, strategy, restores=restores))
        elif engine.rank == 0 or not is_for_rank_0:
            own.append(callback)
        if restores and engine.size > 1:
            own.append(RestoreTogether(strategy))
    if left_out:
        logger.info("%s run on rank 0 alone", ", ".join(sorted(left_out)))
    return own


def check_saves_at_ends_of_epochs(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises UserError if a callback saves in the middle of an epoch."""
    for callback in callbacks:
        every = getattr(callback, "save_freq", "epoch")
        if isinstance(callback, SAVERS) and every != "epoch":
            raise UserError(
                f"{type(callback).__name__} has save_freq={every!r}, but in a pipeline rank 0 gets "
                'all weights at the end of an epoch only; take save_freq="epoch"'
            )
