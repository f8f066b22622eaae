"""Selects which Keras callbacks run on a rank: those that write run on rank 0 alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ooodist.compat.keras_model import restored_epoch, set_restored_epoch
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.step import replicas

logger = logging.getLogger("ooodist")

# Not all versions of Keras have OrbaxCheckpoint.
_SAVERS = tuple(
    getattr(keras.callbacks, name)
    for name in ("BackupAndRestore", "ModelCheckpoint", "OrbaxCheckpoint")
    if hasattr(keras.callbacks, name)
)
WRITERS = (
    *_SAVERS,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


class RestoreTogether(keras.callbacks.Callback):
    """Broadcasts what rank 0's BackupAndRestore has restored; runs right behind it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        own = restored_epoch(model)
        given = np.array([-1 if own is None else own])
        epoch = int(self._engine.broadcast([given])[0][0])
        if epoch < 0:
            return  # there was no backup
        set_restored_epoch(model, epoch)
        if not model.optimizer.built:  # rank 0's was built like this before it was loaded
            model.optimizer.build(model.trainable_variables)
        # Now, as the first step may never come.
        replicas.broadcast_weights(self._engine, model)


def on_this_rank(
    callbacks: Sequence[keras.callbacks.Callback], engine: Engine
) -> list[keras.callbacks.Callback]:
    """Returns the user's callbacks that this rank runs, in their order."""
    own: list[keras.callbacks.Callback] = []
    left_out: set[str] = set()
    for callback in callbacks:
        if engine.rank == 0 or not isinstance(callback, WRITERS):
            own.append(callback)
        else:
            left_out.add(type(callback).__name__)
        if engine.size > 1 and isinstance(callback, keras.callbacks.BackupAndRestore):
            own.append(RestoreTogether(engine))
    if left_out:
        logger.info("%s run on rank 0 alone", ", ".join(sorted(left_out)))
    return own


def check_saves_at_ends_of_epochs(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises UserError if a callback saves in the middle of an epoch."""
    for callback in callbacks:
        every = getattr(callback, "save_freq", "epoch")
        if isinstance(callback, _SAVERS) and every != "epoch":
            raise UserError(
                f"{type(callback).__name__} has save_freq={every!r}, but in a pipeline rank 0 has "
                'all trained weights at the end of an epoch only; take save_freq="epoch"'
            )
