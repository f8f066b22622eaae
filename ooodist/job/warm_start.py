"""Warm start of a job of ``python -m ooodist.train``, and registration of its model in a zoo."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras

from ooodist.config.job import Config
from ooodist.config.warm_start import WarmStartConfig
from ooodist.data.result import Data
from ooodist.engines.base import Engine
from ooodist.engines.rank_0 import on_rank_0
from ooodist.transfer import provenance
from ooodist.zoo.entry import Meta
from ooodist.zoo.start import ANY, client_of, go_on, reason_of
from ooodist.zoo.start import start as start_model

logger = logging.getLogger("ooodist")

PROBE_BATCHES = 8  # batches on which models are probed, repeatedly


def start(config: Config, engine: Engine, data: Data, model: keras.Model) -> None:
    """Gives the model its start weights on all ranks, if the zoo has a similar model."""
    settings = _settings(config, data)
    number = PROBE_BATCHES if settings.probe_steps else 1
    batches = []
    with engine.agreed():
        if engine.rank == 0:
            batches = list(itertools.islice(data.train, number))
    start_model(model, settings, engine, batches)


def resume(state: Mapping[str, Any], model: keras.Model) -> None:
    """Resumes a job that had a warm start; its weights come from a checkpoint."""
    go_on(model, provenance.read(state))


def register(
    config: Config, engine: Engine, data: Data, model: keras.Model, result: Mapping[str, float]
) -> str | None:
    """Adds the trained model to the zoo; returns its id on rank 0, if that worked.

    Raises:
        UserError: it failed, and ``warm_start.required`` is true; on all ranks.
    """
    settings = _settings(config, data)
    start = provenance.start_of(model)
    meta = Meta(
        name=_name_of(config.model),
        task=data.task if settings.task == ANY else settings.task,
        dataset=_name_of(config.data) if settings.dataset == ANY else settings.dataset,
        tags=settings.tags,
        accuracy=_accuracy(result),
        parent=None if start is None else start.parent,
    )

    def upload() -> str:
        with client_of(settings, create=True) as client:
            return client.register(model, meta)

    found, error = None, None
    try:
        found = on_rank_0(engine, upload)
    except Exception as caught:  # the training is done, whatever the zoo says
        reason = reason_of(caught)
        error = f"the trained model was not added to the zoo {settings.zoo}: {reason}"
    if settings.required:
        engine.agree(error)
    if error is not None:
        logger.warning("warm start: %s", error)
    return found


def _settings(config: Config, data: Data) -> WarmStartConfig:
    """The settings, with the job's own task and data set as defaults."""
    assert config.warm_start is not None
    return replace(
        config.warm_start,
        task=config.warm_start.task or data.task,
        dataset=config.warm_start.dataset or _name_of(config.data),
    )


def _name_of(settings: Any) -> str:
    """The name of a model or data in the job file."""
    return str(getattr(settings, "function", None) or settings.name)


def _accuracy(result: Mapping[str, float]) -> float | None:
    """The value of the first metric that is an accuracy."""
    for name, value in result.items():
        if "accuracy" in name and math.isfinite(value) and 0 <= value <= 1:
            return float(value)
    return None
