"""Callbacks that begin and end an epoch on all ranks together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from ooodist.compat.tensorflow_runtime import forget_scalars

if TYPE_CHECKING:
    from ooodist.trainer.fit import DistributedFit

logger = logging.getLogger("ooodist")


class EpochCare(keras.callbacks.Callback):
    """Agrees on an epoch's length, and synchronizes at its end, before the user's callbacks run."""

    def __init__(self, fit: DistributedFit) -> None:
        super().__init__()
        self._fit = fit

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        forget_scalars()  # callbacks make tensors of numbers, others in each epoch
        fit, accumulate = self._fit, self._fit.strategy.accumulate
        steps = self.params.get("steps")
        if fit.engine.size > 1:
            mine = np.array([steps or 0, -(steps or 0)])
            fewest, negative_most = fit.engine.all_reduce(mine, "min")
            if 0 < fewest < -negative_most and fit.engine.rank == 0:
                logger.warning(
                    "fit: ranks have %d to %d batches; each does %d",
                    fewest,
                    -negative_most,
                    fewest,
                )
            steps = int(fewest) or None
        if steps is not None and steps % accumulate:
            logger.info(
                "fit: an epoch of %d batches makes %d updates of %d; what is left waits",
                steps,
                steps // accumulate,
                accumulate,
            )
            steps -= steps % accumulate
        fit.begin_epoch(steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs = {} if logs is None else logs  # later callbacks see what is added
        self._fit.strategy.watch.look()
        self._fit.strategy.watch.tell()
        self._fit.end_epoch(logs)
        self._fit.strategy.watch.check_weights(logs.get("loss"))


class StopTogether(keras.callbacks.Callback):
    """Runs after the user's callbacks: if one rank stops at the end of an epoch, all do."""

    def __init__(self, fit: DistributedFit) -> None:
        super().__init__()
        self._engine = fit.engine

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        stops = self._engine.all_reduce(np.array([int(self.model.stop_training)]), "max")
        self.model.stop_training = bool(stops[0])
