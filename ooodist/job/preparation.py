"""Sets up a job: checkpoint, data and model, on all ranks together.

Any error here on some rank is agreed on, so that all ranks end with the same message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist import models
from ooodist.checkpoint.copies import Copies
from ooodist.compat.keras_deferred import made_without_values
from ooodist.config import job as job_file
from ooodist.config import keras_callbacks, keras_objects
from ooodist.config.job import Config
from ooodist.data import kinds
from ooodist.data.result import Data
from ooodist.data_parallel import planning
from ooodist.engines.base import Engine
from ooodist.errors import UserError, brief
from ooodist.graph.recurrent import put_recurrent_gradients_after_loop
from ooodist.job.distribute import distributed
from ooodist.job.division import divided
from ooodist.models.base import PRETRAINING
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.pipeline.layer_costs import ModelCosts
from ooodist.step.feature import Feature
from ooodist.trainer import resume
from ooodist.util import yaml_dataclass
from ooodist.util.replacing import INCOMPLETE_PREFIX
from ooodist.util.user_functions import call_users

logger = logging.getLogger("ooodist")

CONFIG_NAME = "config.yaml"


@dataclass(frozen=True)
class PreparedJob:
    """A job that is ready to train."""

    config: Config
    engine: Engine
    folder: Path  # the output; only rank 0 writes to it, except parts of checkpoints
    source: resume.Source | None  # the checkpoint to resume from
    data: Data
    model: keras.Model
    steps_per_epoch: int
    first_step: int  # position in the sample stream
    best_weights: Sequence[np.ndarray | None] | None  # of the checkpoint's best epoch
    batches_done: int = 0  # of the first epoch, by the run before
    callbacks: Sequence[keras.callbacks.Callback] = ()  # of the job file

    @property
    def worker(self) -> int:
        """Index of this rank's part of the samples; a pipeline is one worker."""
        return _place(self.config, self.engine)[0]

    @property
    def workers(self) -> int:
        """Number of parts of the samples."""
        return _place(self.config, self.engine)[1]

    @property
    def first_epoch(self) -> int:
        """Number of epochs that were complete when this run began."""
        return 0 if self.source is None else self.source.state.epoch


def set_up(config: Config, engine: Engine) -> PreparedJob:
    """Does everything before the first step. Raises UserError, the same on all ranks."""
    engine.check_equal("the job (--config, --set)", job_file.digest(config))
    folder = Path(config.output)
    found = None
    with engine.agreed():
        if engine.rank == 0:
            check_writable(folder)
            if config.checkpoint.copy_to is not None:
                Copies(config.checkpoint.copy_to).check_writable()
            found = resume.find(config.checkpoint, folder)
        callbacks = keras_callbacks.make_callbacks(config.callbacks)
    source = resume.share(engine, found)
    if callbacks and source is not None:
        logger.info("callbacks start anew: checkpoints do not have what they remember")
    config = divided(
        config,
        engine,
        None if source is None else source.state,
        lambda whole: _measure_layers(whole, engine),
    )
    _, workers = _place(config, engine)
    checkpoint = config.checkpoint
    batch = resume.batch_after_restart(source, checkpoint, config.batch, workers)
    config = replace(config, batch=batch)
    first_step = resume.start_step(source, checkpoint, batch, workers)
    if source is not None:
        resume.warn_of_changes(source, yaml_dataclass.plain(config), workers)
    data, steps, model = load_and_build(config, engine, first_step=first_step)
    done = resume.batches_done(
        source,
        batch=batch,
        accumulate=config.accumulate,
        size=workers,
        steps_per_epoch=steps,
    )
    _warm_up(config, engine, source, data, model)
    best_weights: Sequence[np.ndarray | None] | None = None
    if source is not None:
        if config.parallel is None:
            if model.ooodist.strategy.has_whole_optimizer:
                best_weights = resume.restore(engine, source, model)
            else:
                model.ooodist.strategy.broadcast_weights()  # now each rank has its part
                best_weights = resume.restore_own(engine, source, model)
            resume.restore_rank_state(engine, source, model.ooodist.strategy.inner.rank_state)
        logger.info("resuming after %s from %s", source.state.where(), source.file)
    model.ooodist.begin_batches(data.train.element_spec)
    if model.ooodist.strategy.needs_plan:
        logger.info("planning: measuring the model and the network")
        left = config.epochs - (0 if source is None else source.state.epoch)
        updates = max(1, (left * steps - done) // config.accumulate)
        model.ooodist.strategy.plan(next(iter(data.train)), updates)
    if config.parallel is not None:  # now ranks have their stages
        if source is not None:
            best_weights = resume.restore_own(engine, source, model)
        elif config.model.weights_file is not None:
            with engine.agreed():
                models.load_start_weights(model, config.model.weights_file)
    if source is not None and source.state.selection is not None:
        model.ooodist.strategy.restore_selection(source.state.selection)
    if engine.rank == 0:
        model.ooodist.strategy.write_plan(folder)
        (folder / CONFIG_NAME).write_text(job_file.to_yaml(config), encoding="utf-8")
    return PreparedJob(
        *(config, engine, folder, source, data, model),
        *(steps, first_step, best_weights, done, callbacks),
    )


def load_and_build(
    config: Config, engine: Engine, *, first_step: int = 0
) -> tuple[Data, int, keras.Model]:
    """Data, steps per epoch, and model. Raises UserError, the same on all ranks.

    Args:
        first_step: step of the sample stream at which the data begins.
    """
    with engine.agreed():
        if config.parallel is not None:
            from ooodist.pipeline.ranks import check_started  # imports mpi4py

            check_started(engine.size, config.parallel.pipeline, config.parallel.data)
        worker, workers = _place(config, engine)
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
    plan = None
    if config.order.plan is not None:
        plan = planning.read_plan(Path(config.order.plan), engine).plan
    with engine.agreed():
        model = _build(config, engine, data, plan)
    return data, steps, model


def _measure_layers(config: Config, engine: Engine) -> ModelCosts:
    """Returns on rank 0 the costs of the layers, and of links, before the ranks are divided; all
    ranks call it, with a job that is one pipeline of all of them."""
    from ooodist.engines.mpi import MpiEngine
    from ooodist.pipeline.layers.in_parts import measure_in_parts
    from ooodist.pipeline.layers.measure import FEW_LAYER_STEPS
    from ooodist.pipeline.links import measure_link  # imports mpi4py

    assert config.parallel is not None
    assert isinstance(engine, MpiEngine)
    logger.info("measuring the layers and the network, to divide %d devices", engine.size)
    data, _, model = load_and_build(config, engine)
    strategy = model.ooodist.strategy
    with engine.agreed():
        batch = next(iter(data.train))
    strategy.broadcast(batch)
    layers = measure_in_parts(
        model, batch, config.parallel.microbatches, engine, engine.size, steps=FEW_LAYER_STEPS
    )
    strategy.close()
    keras.utils.clear_session()  # so that layers of the model to be trained have the same names
    return ModelCosts(layers, measure_link(engine.world))


def _warm_up(
    config: Config, engine: Engine, source: resume.Source | None, data: Data, model: keras.Model
) -> None:
    """Starts the model from one of the zoo, or resumes a job that was started so."""
    state = None if source is None else source.state.warm_start
    if state is None and (source is not None or config.warm_start is None):
        return
    from ooodist.job import warm_start as warm_job  # imports gRPC

    if state is None:
        warm_job.start(config, engine, data, model)
    else:
        warm_job.resume(state, model)


def check_writable(folder: Path) -> None:
    """Makes the folder if needed. Raises UserError if it cannot be written to."""
    probe = folder / f"{INCOMPLETE_PREFIX}probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"output is {folder}, where nothing can be written ({error.strerror}); "
            "give a folder that can be written to, as --output DIR"
        ) from error


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
    keras.utils.set_random_seed(config.seed + _place(config, engine)[0])
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
    model = _distribute(config, model, plan)
    model.ooodist.data_is_shared_out = True  # by ooodist.data
    return model


def _place(config: Config, engine: Engine) -> tuple[int, int]:
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


def _distribute(config: Config, model: keras.Model, plan: Plan | None) -> keras.Model:
    training = config.training(plan, _features(config))
    if config.parallel is not None:
        from ooodist.job.pipelined import in_stages  # imports mpi4py

        return in_stages(model, training, config.timeout)
    # The job trains alike with any number of workers.
    return distributed(model, training, sum_rows=True)


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
