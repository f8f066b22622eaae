"""Makes Keras optimizers, schedules, losses and metrics from the names and arguments in a job file.

``check_…`` only checks names and arguments (no TensorFlow operation runs, so it may be called
before an engine starts); ``make_…`` makes the object.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

import keras

from ooodist.config.keras_catalogue import (
    Catalogue,
    catalogue,
    check_arguments,
    check_not_negative,
    find,
    make,
    snake_case,
)
from ooodist.config.named_arguments import NamedArguments
from ooodist.errors import UserError
from ooodist.models.base import PRETRAINING
from ooodist.models.metrics import NO_LABEL, LabeledAccuracy
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")

SCHEDULE = "schedule"
_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")


OPTIMIZERS: Catalogue = catalogue(
    keras.optimizers,
    keras.optimizers.Optimizer,
    str.lower,
    "LossScaleOptimizer",  # added by precision: mixed_float16
    "MultiOptimizer",
)
SCHEDULES: Catalogue = catalogue(
    keras.optimizers.schedules, keras.optimizers.schedules.LearningRateSchedule, snake_case
)
LOSSES: Catalogue = catalogue(keras.losses, keras.losses.Loss, snake_case)
METRICS: Catalogue = catalogue(
    keras.metrics, keras.metrics.Metric, snake_case, "MeanMetricWrapper", "Mean", "Sum"
) | {"accuracy": keras.metrics.SparseCategoricalAccuracy}  # Keras' own compares logits to labels


def check_optimizer(named: NamedArguments, path: str) -> NamedArguments:
    """Checks the optimizer; returns it by its canonical name. Raises UserError for a wrong key."""
    name = find(named.name, OPTIMIZERS, path, "optimizer")
    arguments = dict(named.arguments)
    rate = arguments.pop("learning_rate", None)
    checked = check_arguments(OPTIMIZERS[name], arguments, path, name, numbers_only=True)
    for key in _CLIPPING:
        if checked.get(key) == 0:  # Keras would silently not clip
            raise UserError(f"{path}.{key} is 0; it must be more than 0, or null for no clipping")
    if rate is not None:
        checked = {"learning_rate": _check_rate(rate, f"{path}.learning_rate"), **checked}
    return NamedArguments(name, checked)


def _check_rate(rate: Any, path: str) -> float | dict[str, Any]:
    if not isinstance(rate, dict):
        # A schedule's keys are checked below, so only a bad number is rejected here.
        value: float = yaml_dataclass.read(float | dict[str, Any], rate, path)
        check_not_negative(rate, path)
        return value
    if SCHEDULE not in rate:
        raise UserError(
            f"{path}.{SCHEDULE} is missing; it must be one of {', '.join(SCHEDULES)} "
            f"(or write a number: learning_rate: 0.1)"
        )
    arguments = dict(rate)
    name = find(arguments.pop(SCHEDULE), SCHEDULES, path, SCHEDULE, key=SCHEDULE)
    cls = SCHEDULES[name]
    return {SCHEDULE: name, **check_arguments(cls, arguments, path, name, numbers_only=True)}


def check_loss(named: NamedArguments, path: str) -> NamedArguments:
    """Checks the loss; returns it by its canonical name. Raises UserError for a wrong key."""
    name = find(named.name, LOSSES, path, "loss")
    return NamedArguments(name, check_arguments(LOSSES[name], named.arguments, path, name))


def check_metric(named: NamedArguments, path: str) -> NamedArguments:
    """Checks the metric; returns it by its canonical name. Raises UserError for a wrong key."""
    name = find(named.name, METRICS, path, "metric")
    return NamedArguments(name, check_arguments(METRICS[name], named.arguments, path, name))


def make_optimizer(named: NamedArguments) -> keras.optimizers.Optimizer:
    """Makes a new optimizer. Raises UserError if Keras refuses a value."""
    arguments = dict(named.arguments)
    rate = arguments.get("learning_rate")
    if isinstance(rate, Mapping):
        settings = {key: value for key, value in rate.items() if key != SCHEDULE}
        schedule = SCHEDULES[rate[SCHEDULE]]
        arguments["learning_rate"] = make(schedule, settings, "optimizer.learning_rate")
    return make(OPTIMIZERS[named.name], arguments, "optimizer")


def make_loss(named: NamedArguments | None, task: str) -> keras.losses.Loss:
    """Makes the loss, by default the usual one for the task; models output logits.

    Raises UserError if there is another than that of pre-training.
    """
    if task == PRETRAINING:
        _check_is_default("loss", named)
        named = NamedArguments("sparse_categorical_crossentropy", {"ignore_class": NO_LABEL})
    if named is None:
        usual = "mean_squared_error" if task == "regression" else "sparse_categorical_crossentropy"
        named = NamedArguments(usual)
    return make(LOSSES[named.name], _on_logits(LOSSES[named.name], named), "loss")


def make_metrics(
    metrics: tuple[NamedArguments, ...] | None, task: str
) -> list[keras.metrics.Metric]:
    """Makes the metrics, by default the usual ones for the task: accuracy, none for regression.

    For pre-training there is one for each output. Raises UserError if there are others.
    """
    if task == PRETRAINING:
        _check_is_default("metrics", metrics)
        accuracies = LabeledAccuracy, keras.metrics.SparseCategoricalAccuracy
        return [accuracy(name="accuracy") for accuracy in accuracies]
    if metrics is None:
        if task == "regression":
            return []
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    made: list[Any] = []
    for index, named in enumerate(metrics):
        if named.name in [metric.name for metric in made]:
            raise UserError(f"metrics: {named.name} is there twice; keep one of them")
        arguments = _on_logits(METRICS[named.name], named) | {"name": named.name}
        made.append(make(METRICS[named.name], arguments, f"metrics[{index}]"))
    return made


def _check_is_default(key: str, given: Any) -> None:
    if given is not None:
        raise UserError(
            f"{key} is given, but data masked_text has masked tokens and a next sentence to "
            "predict, each with its own; leave it out"
        )


def _on_logits(cls: type, named: NamedArguments) -> dict[str, Any]:
    """The arguments, with ``from_logits: true`` if the class has it and it is unset."""
    arguments = dict(named.arguments)
    if "from_logits" in inspect.signature(cls).parameters and "from_logits" not in arguments:
        logger.info("%s takes logits (from_logits: false is for probabilities)", named.name)
        arguments["from_logits"] = True
    return arguments
