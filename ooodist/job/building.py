"""Makes the data and the model of a job, on all ranks together.

What is checked without a step is checked here: that the model fits the data, the loss and metrics
the labels, monitors the metrics, and that the model can be saved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ooodist import models
from ooodist.compat.keras_deferred import made_without_values
from ooodist.config import keras_callbacks, keras_objects
from ooodist.config.job import Config
from ooodist.data import kinds
from ooodist.data.result import Data
from ooodist.data_parallel.planning import shared_plan
from ooodist.engines.base import Engine
from ooodist.errors import UserError, brief
from ooodist.graph.recurrent import put_recurrent_gradients_after_loop
from ooodist.job.compose import compose
from ooodist.models.base import PRETRAINING
from ooodist.pipeline.ranks import check_started
from ooodist.planner.data_parallel import plan as plans
from ooodist.planner.data_parallel.plan import Plan
from ooodist.step.feature import Feature
from ooodist.util import yaml_dataclass
from ooodist.util.user_functions import call_users

logger = logging.getLogger("ooodist")


def load_and_build(
    config: Config, engine: Engine, *, first_step: int = 0
) -> tuple[Data, int, keras.Model]:
    """Data, steps per epoch, and model. Raises UserError, the same on all ranks.

    Args:
        first_step: step of the sample stream at which the data begins.
    """
    with engine.agreed():
        if config.parallel is not None:
            check_started(engine.size, config.parallel.pipeline, config.parallel.data)
        worker, workers = place(config, engine)
        data = kinds.load(
            config.data,
            batch=config.batch,
            rank=worker,
            size=workers,
            seed=config.seed,
            start_step=first_step,
        )
        steps = _steps_per_epoch(config, data)
    engine.check_equal("the data (its samples, classes or vocabulary)", data.description)
    plan, file = None, config.order.plan
    if file is not None:
        plan = shared_plan(lambda: plans.read(Path(file)), engine)
    with engine.agreed():
        model = _build(config, engine, data, plan)
    return data, steps, model


def _steps_per_epoch(config: Config, data: Data) -> int:
    steps = config.steps_per_epoch or data.steps_per_epoch
    if steps is None:
        raise UserError(
            "steps_per_epoch is missing: the training data is endless, so nothing else says after "
            "how many steps to evaluate and save; give it, as steps_per_epoch: 1000"
        )
    whole = steps - steps % config.accumulate
    if whole == 0:
        raise UserError(
            f"accumulate is {config.accumulate}, but an epoch has only {steps} steps; "
            "lower accumulate or batch, or raise steps_per_epoch"
        )
    if whole != steps:
        logger.info("an epoch is %d steps, not %d: whole updates only", whole, steps)
    return whole


def _build(config: Config, engine: Engine, data: Data, plan: Plan | None) -> keras.Model:
    keras.config.set_dtype_policy(config.precision)
    # Layers draw the seeds of their generators here: all ranks make the same model.
    keras.utils.set_random_seed(config.seed)
    if config.parallel is None or config.model.weights != config.model.weights_file:
        model = models.build(config.model, data)  # with what Keras downloads, it has all values
    else:  # each rank will only have what it trains
        model = made_without_values(lambda: models.build(config.model, data))
    if config.recurrent_gradients == "after_loop":
        put_recurrent_gradients_after_loop(model)
    keras.utils.set_random_seed(config.seed + place(config, engine)[0])
    loss = keras_objects.make_loss(config.loss, data.task)
    metrics = keras_objects.make_metrics(config.metrics, data.task)
    _check_monitors(config, data, metrics, model)
    _check_fit_data(config, data, model, loss, metrics)
    model.compile(
        optimizer=keras_objects.make_optimizer(config.optimizer),
        loss=loss,
        # Keras takes a list for each output.
        metrics=[[metric] for metric in metrics] if data.task == PRETRAINING else metrics,
        jit_compile=False,  # ooodist compiles
    )
    if config.checkpoint.is_wanted:
        _check_can_be_saved(model)
    model = compose(model, config.training(plan, _features(config)))
    model.ooodist.data_is_shared_out = True  # by ooodist.data
    return model


def place(config: Config, engine: Engine) -> tuple[int, int]:
    """This rank's worker and the number of workers; a pipeline is one worker."""
    if config.parallel is None:
        return engine.rank, engine.size
    return engine.rank // config.parallel.pipeline, config.parallel.data


def _features(config: Config) -> list[Feature]:
    made = []
    for index, named in enumerate(config.features):
        path, returns = f"features[{index}]", "an ooodist.Feature"
        feature: Any = call_users(named.name, named.arguments, path, returns)
        if not isinstance(feature, Feature):
            raise UserError(
                f"{path}: {named.name} is {type(feature).__name__} {str(feature)[:80]}; it must be "
                f"{returns}"
            )
        made.append(feature)
    return made


def _check_monitors(
    config: Config, data: Data, metrics: list[keras.metrics.Metric], model: keras.Model
) -> None:
    wanted = keras_callbacks.monitored(config.callbacks)
    if config.early_stopping is not None:
        wanted["early_stopping.monitor"] = config.early_stopping.monitor
    if not wanted or type(model).train_step is not keras.Model.train_step:
        return  # a custom train_step may log anything
    names = ["loss", *(metric.name for metric in metrics)]
    if data.task == PRETRAINING:  # Keras says of which output
        of_outputs = zip(model.output_names, metrics, strict=True)
        names = ["loss"]
        names += [f"{out}_{what}" for out, metric in of_outputs for what in ("loss", metric.name)]
    if data.validation is not None:
        names += [f"val_{name}" for name in names]
    for key, monitor in wanted.items():
        if monitor not in names:
            near = yaml_dataclass.did_you_mean(monitor, names)
            raise UserError(
                f"{key} is {monitor}{near}; it must be one of {', '.join(names)}"
                + ("" if data.validation is not None else " (there is no validation data)")
            )


def _check_fit_data(
    config: Config,
    data: Data,
    model: keras.Model,
    loss: keras.losses.Loss,
    metrics: list[keras.metrics.Metric],
) -> None:
    """Traces the loss and the metrics on the labels and the outputs, as far as shapes are known.

    Raises:
        UserError: one of them fails.
    """
    known = getattr(model, "outputs", None)  # None: subclassed
    if known is None or type(model).train_step is not keras.Model.train_step:
        return  # a custom train_step may use them in any way
    outputs = [tf.TensorSpec(output.shape, output.dtype) for output in known]
    _, y = data.train.element_spec
    labels = tf.nest.flatten(y)
    if len(labels) != len(outputs):
        raise UserError(
            f"model {model.name} has {len(outputs)} outputs, and data {config.data.name} has "
            f"{len(labels)} labels a sample; there must be one for each"
        )
    parts: list[tuple[str, Callable[..., Any]]] = [("loss", loss)]
    if len(outputs) == 1:
        for metric in metrics:
            copy = type(metric).from_config(metric.get_config())  # its state is discarded
            parts.append((f"metrics: {metric.name}", copy.update_state))
    for name, compute in parts:
        for label, output in zip(labels, outputs, strict=True):
            try:
                tf.function(compute, autograph=False).get_concrete_function(label, output)
            except Exception as error:
                raise UserError(
                    f"{name} cannot be computed for the labels of data {config.data.name} "
                    f"({label.dtype.name} {label.shape}) and the outputs of model {model.name} "
                    f"({output.dtype.name} {output.shape}): {brief(error)}; give another, or fix "
                    "the labels"
                ) from error


def _check_can_be_saved(model: keras.Model) -> None:
    try:
        keras.saving.serialize_keras_object(model)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UserError(
            f"model {model.name} cannot be saved as a Keras file, so it cannot have checkpoints "
            f"({str(error).strip().splitlines()[0]}); give its classes a get_config method, or "
            "write none (checkpoint.every_epochs: 0, every_steps: 0, every_minutes: 0)"
        ) from error
