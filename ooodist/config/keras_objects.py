"""Makes Keras optimizers, schedules, losses and metrics from the names and arguments in a job file.

``check_…`` only checks names and arguments (no TensorFlow operation runs, so it may be called
before an engine starts); ``make_…`` makes the object.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import keras

from ooodist.config.named_arguments import NamedArguments
from ooodist.errors import UserError
from ooodist.models.base import PRETRAINING
from ooodist.models.metrics import NO_LABEL, LabeledAccuracy
from ooodist.util import yaml_dataclass
from ooodist.util.yaml_dataclass import did_you_mean

logger = logging.getLogger("ooodist")

SCHEDULE = "schedule"
Catalogue = Mapping[str, type]

_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")
_MAY_BE_NEGATIVE = ("learning_rate_power",)


def snake_case(name: str) -> str:
    """Converts to snake case: ``CosineDecay`` -> ``cosine_decay``, ``R2Score`` -> ``r2_score``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _catalogue(module: ModuleType, base: type, spell: Callable[[str], str], *wrappers: str) -> Any:
    """Returns the public subclasses of ``base`` by the names that job files use."""
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {
        spell(name): cls
        for name, cls in sorted(classes.items())
        if issubclass(cls, base) and cls is not base and name not in wrappers
    }


OPTIMIZERS: Catalogue = _catalogue(
    keras.optimizers,
    keras.optimizers.Optimizer,
    str.lower,
    "LossScaleOptimizer",  # added by precision: mixed_float16
    "MultiOptimizer",
)
SCHEDULES: Catalogue = _catalogue(
    keras.optimizers.schedules, keras.optimizers.schedules.LearningRateSchedule, snake_case
)
LOSSES: Catalogue = _catalogue(keras.losses, keras.losses.Loss, snake_case)
METRICS: Catalogue = _catalogue(
    keras.metrics, keras.metrics.Metric, snake_case, "MeanMetricWrapper", "Mean", "Sum"
) | {"accuracy": keras.metrics.SparseCategoricalAccuracy}  # Keras' own compares logits to labels


def check_optimizer(named: NamedArguments, path: str) -> NamedArguments:
    """Returns the optimizer with its canonical name. Raises UserError, which names a wrong key."""
    name = _find(named.name, OPTIMIZERS, path, "optimizer")
    arguments = dict(named.arguments)
    rate = arguments.pop("learning_rate", None)
    checked = _check_arguments(OPTIMIZERS[name], arguments, path, name, numbers_only=True)
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
        _check_not_negative(rate, path)
        return value
    if SCHEDULE not in rate:
        raise UserError(
            f"{path}.{SCHEDULE} is missing; it must be one of {', '.join(SCHEDULES)} "
            f"(or write a number: learning_rate: 0.1)"
        )
    arguments = dict(rate)
    name = _find(arguments.pop(SCHEDULE), SCHEDULES, path, SCHEDULE, key=SCHEDULE)
    cls = SCHEDULES[name]
    return {SCHEDULE: name, **_check_arguments(cls, arguments, path, name, numbers_only=True)}


def check_loss(named: NamedArguments, path: str) -> NamedArguments:
    """Returns the loss with its canonical name. Raises UserError, which names a wrong key."""
    name = _find(named.name, LOSSES, path, "loss")
    return NamedArguments(name, _check_arguments(LOSSES[name], named.arguments, path, name))


def check_metric(named: NamedArguments, path: str) -> NamedArguments:
    """Returns the metric with its canonical name. Raises UserError, which names a wrong key."""
    name = _find(named.name, METRICS, path, "metric")
    return NamedArguments(name, _check_arguments(METRICS[name], named.arguments, path, name))


def make_optimizer(named: NamedArguments) -> keras.optimizers.Optimizer:
    """Makes a new optimizer. Raises UserError if Keras refuses a value."""
    arguments = dict(named.arguments)
    rate = arguments.get("learning_rate")
    if isinstance(rate, Mapping):
        settings = {key: value for key, value in rate.items() if key != SCHEDULE}
        schedule = SCHEDULES[rate[SCHEDULE]]
        arguments["learning_rate"] = _make(schedule, settings, "optimizer.learning_rate")
    return _make(OPTIMIZERS[named.name], arguments, "optimizer")


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
    return _make(LOSSES[named.name], _on_logits(LOSSES[named.name], named), "loss")


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
        made.append(_make(METRICS[named.name], arguments, f"metrics[{index}]"))
    return made


def _check_is_default(key: str, given: Any) -> None:
    if given is not None:
        raise UserError(
            f"{key} is given, but data masked_text has masked tokens and a next sentence to "
            "predict, each with its own; leave it out"
        )


def _on_logits(cls: type, named: NamedArguments) -> dict[str, Any]:
    """Returns the arguments, with ``from_logits: true`` if the class has it and it is unset."""
    arguments = dict(named.arguments)
    if "from_logits" in inspect.signature(cls).parameters and "from_logits" not in arguments:
        logger.info("%s takes logits (from_logits: false is for probabilities)", named.name)
        arguments["from_logits"] = True
    return arguments


def _find(name: Any, catalogue: Catalogue, path: str, what: str, key: str = "name") -> str:
    """Returns the canonical spelling of a name; ``RMSProp`` and ``AdamW`` are found as well."""
    if isinstance(name, str):
        for known in catalogue:
            if known.replace("_", "") == name.replace("_", "").lower():
                return known
    raise UserError(
        f"{path}.{key} is {name}{did_you_mean(name, list(catalogue))}; "
        f"a Keras {what} is one of {', '.join(catalogue)}"
    )


def _check_arguments(
    cls: type, arguments: Mapping[str, Any], path: str, name: str, numbers_only: bool = False
) -> dict[str, Any]:
    """Checks the arguments against the constructor's signature and defaults, and returns them."""
    parameters = {
        key: parameter
        for key, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and key != "name"
    }
    yaml_dataclass.check_keys(arguments, parameters, path, name)
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise UserError(f"{path}.{key} is missing; {name} needs it")
    checked = {
        key: yaml_dataclass.read(
            _hint(parameters[key].default, numbers_only), value, f"{path}.{key}"
        )
        for key, value in arguments.items()
    }
    if numbers_only:
        for key in checked.keys() - _MAY_BE_NEGATIVE:
            _check_not_negative(checked[key], f"{path}.{key}")
    return checked


def _check_not_negative(value: Any, path: str) -> None:
    """Raises UserError for a number below zero, which Keras would accept silently."""
    at_least_zero = yaml_dataclass.Range(0)
    if isinstance(value, int | float) and not at_least_zero.contains(value):
        raise UserError(f"{path} is {value}; it must be {at_least_zero}")


def _hint(default: Any, numbers_only: bool) -> Any:
    """Returns an argument's type, inferred from its default, as Keras has no type hints."""
    if default is None or default is inspect.Parameter.empty:
        without_text = int | float | list[Any] | None
        return without_text if numbers_only else without_text | str | bool
    if type(default) is int:
        return int | float
    return type(default) if type(default) in (bool, float, str) else Any


def _make(cls: type, arguments: Mapping[str, Any], path: str) -> Any:
    try:
        return cls(**arguments)
    except (ValueError, TypeError) as error:
        given = yaml_dataclass.dump(dict(arguments)).strip().replace("\n", ", ")
        raise UserError(f"{path}: Keras refuses {cls.__name__} with {given}: {error}") from error
