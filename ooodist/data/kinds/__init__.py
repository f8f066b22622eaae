"""The kinds of data, one module each; :func:`load` makes one worker's datasets of any of them.

Importing this package does not import TensorFlow; :func:`load` does.
"""

from __future__ import annotations

import importlib
import logging
import time

from ooodist.config.data import KINDS, DataConfig, DataLayers
from ooodist.data.result import Data
from ooodist.errors import UserError, brief

log = logging.getLogger("ooodist")


def load(
    config: DataConfig,
    *,
    batch: int,
    rank: int,
    size: int,
    seed: int,
    start_step: int = 0,
) -> Data:
    """Loads this worker's part of the data.

    ``batch``: samples per worker and step; ``rank`` of ``size`` workers; ``seed`` decides the order
    of the samples and must be the same on all workers; ``start_step``: the step at which a resumed
    run goes on. Raises UserError for what the user can correct: missing, unreadable or empty data,
    fewer samples than a step needs, labels out of range.
    """
    import tensorflow as tf

    from ooodist.data.stream import Share

    share = Share(batch, rank, size, seed, start_step)
    start = time.perf_counter()
    # Only the kind in use is imported, because each needs packages of its own.
    kind = importlib.import_module(f"ooodist.data.kinds.{_module_of(config)}")
    # Data stays in host memory where there is a GPU.
    try:
        with tf.device("CPU:0"):
            data: Data = kind.source(config).build(share)
            if isinstance(config, DataLayers) and (config.preprocess or config.augment):
                from ooodist.data.kinds.layers import with_layers  # imports Keras

                data = with_layers(data, config, share)
    except tf.errors.OpError as error:
        raise UserError(f"data {config.name} cannot be read: {brief(error)}; fix it") from error
    log.info("data %s (%.1f s)", data.description, time.perf_counter() - start)
    return data


def _module_of(config: DataConfig) -> str:
    """The name of the kind's module, which is that of the kind."""
    if type(config) is not KINDS.get(config.name):
        raise TypeError(f"{config!r} is no data config")
    return config.name
