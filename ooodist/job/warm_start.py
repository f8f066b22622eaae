"""Warm start of a job of ``python -m ooodist.train``, and registration of its model in a zoo."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import keras

from ooodist.config import keras_objects
from ooodist.config.job import Config
from ooodist.config.named_arguments import NamedArguments
from ooodist.config.warm_start import WarmStartConfig
from ooodist.data.result import Data
from ooodist.engines.base import Engine
from ooodist.engines.rank_0 import on_rank_0
from ooodist.errors import UserError
from ooodist.transfer import provenance
from ooodist.util.yaml_dataclass import did_you_mean
from ooodist.zoo import metrics
from ooodist.zoo.entry import Meta
from ooodist.zoo.start import ANY, client_of, go_on, reason_of
from ooodist.zoo.start import start as start_model

logger = logging.getLogger("ooodist")

PROBE_BATCHES = 8  # batches on which models are probed, repeatedly


def _exp(loss: float) -> float:
    return math.exp(min(loss, 700.0))  # more would overflow


# By task: its usual loss, the metric that follows from it, and how.
_FROM_LOSS: dict[str, tuple[str, str, Callable[[float], float]]] = {
    "language": ("sparse_categorical_crossentropy", "perplexity", _exp),
    "regression": ("mean_squared_error", "rmse", math.sqrt),
}


def start(config: Config, engine: Engine, data: Data, model: keras.Model) -> None:
    """Gives the model its start weights on all ranks, if the zoo has a similar model."""
    settings = _settings(config, data)
    number = PROBE_BATCHES if settings.probe_steps else 1
    batches = []
    with engine.agreed():
        _check_judge(config, data)
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

    def upload() -> str:
        measured = _measured(config, data, model, result)
        judge = metrics.judge_of(Meta(task=data.task, metrics=measured)) or ""
        meta = Meta(
            name=_name_of(config.model),
            task=data.task if settings.task == ANY else settings.task,
            dataset=_name_of(config.data) if settings.dataset == ANY else settings.dataset,
            tags=settings.tags,
            metrics=measured,
            parent=None if start is None else start.parent,
            judged_by=settings.judged_by or judge,
        )
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


def _measured(
    config: Config, data: Data, model: keras.Model, result: Mapping[str, float]
) -> dict[str, float]:
    """The possible values among the results of the evaluation, and what follows from them."""
    cls = type(model)
    is_usual = cls.compute_loss is keras.Model.compute_loss
    is_usual = is_usual and cls.test_step is keras.Model.test_step
    has_plain_loss = is_usual and not model.losses  # such as regularizers
    plain = {name: result[name] for name in result if name != "loss" or has_plain_loss}
    found = {}
    for name, value in {**result, **_derived(config, data, plain)}.items():
        with contextlib.suppress(UserError):
            metrics.check(name, value)
            found[name] = float(value)
    return found


def _derived(config: Config, data: Data, result: Mapping[str, float]) -> dict[str, float]:
    """The metrics that follow from others, by name; the loss must have nothing added."""
    found = {}
    if "root_mean_squared_error" in result:  # Keras's name
        found["rmse"] = result["root_mean_squared_error"]
    if data.task in _FROM_LOSS and "loss" in result:
        usual, name, compute = _FROM_LOSS[data.task]
        if config.loss in (None, NamedArguments(usual)):
            found[name] = compute(result["loss"])
    return found


def _check_judge(config: Config, data: Data) -> None:
    """Raises UserError if ``judged_by`` names a metric that the job does not measure."""
    assert config.warm_start is not None
    judge = config.warm_start.judged_by
    if not judge:
        return
    names: list[str] = []
    if data.validation is not None:
        made = keras_objects.make_metrics(config.metrics, data.task)
        names = ["loss", *(metric.name for metric in made)]
        names += _derived(config, data, dict.fromkeys(names, 0.0))
    known = [*filter(metrics.kind_of, names)]
    # A model with several outputs has them by output.
    if not any(judge == name or judge.endswith(f"_{name}") for name in known):
        raise UserError(
            f"warm_start.judged_by is {judge}{did_you_mean(judge, known)}; it must be one of what "
            f"the job measures and the zoo can compare: {', '.join(known) or 'nothing'} (metrics "
            f"of a job can be added to; the zoo compares {', '.join(metrics.KNOWN)})"
        )
