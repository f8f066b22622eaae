"""Sets up a job: checkpoint, data and model, on all ranks together.

Any error here on some rank is agreed on, so that all ranks end with the same message.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ooodist import models
from ooodist.checkpoint.copies import Copies
from ooodist.config import job as job_file
from ooodist.config import keras_callbacks
from ooodist.config.job import Config
from ooodist.data.result import Data
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.job.building import load_and_build, place
from ooodist.job.division import divided
from ooodist.pipeline.layers.in_parts import measure_in_parts
from ooodist.pipeline.layers.measure import FEW_LAYER_STEPS
from ooodist.pipeline.links import measure_link
from ooodist.planner.pipeline.layer_costs import ModelCosts
from ooodist.step.optimizer import needs_all_gradients
from ooodist.trainer import resume
from ooodist.trainer.saving import within_epoch
from ooodist.util import yaml_dataclass
from ooodist.util.replacing import INCOMPLETE_PREFIX

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
    def strategy(self) -> Any:
        """The strategy by which the model trains."""
        return self.model.ooodist.strategy

    @property
    def worker(self) -> int:
        """Index of this rank's part of the samples; a pipeline is one worker."""
        return place(self.config, self.engine)[0]

    @property
    def workers(self) -> int:
        """Number of parts of the samples."""
        return place(self.config, self.engine)[1]

    @property
    def global_batch(self) -> int:
        """Samples of all workers in a step."""
        return self.config.batch * self.workers

    @property
    def first_epoch(self) -> int:
        """Number of epochs that were complete when this run began."""
        return 0 if self.source is None else self.source.state.epoch


def set_up(config: Config, engine: Engine) -> PreparedJob:
    """Does everything before the first step. Raises UserError, the same on all ranks."""
    engine.check_equal("the job (--config, --set)", job_file.digest(config))
    folder, checkpoint, found = Path(config.output), config.checkpoint, None
    with engine.agreed():
        if engine.rank == 0:
            check_writable(folder)
            if checkpoint.copy_to is not None:
                Copies(checkpoint.copy_to).check_writable()
            found = resume.find(checkpoint, folder)
        callbacks = keras_callbacks.make_callbacks(config.callbacks)
    source = resume.share(engine, found)
    if callbacks and source is not None:
        logger.info("callbacks start anew: checkpoints do not have what they remember")
    state = None if source is None else source.state
    config = divided(config, engine, state, lambda whole: _measure_layers(whole, engine))
    _, workers = place(config, engine)
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
    fit = model.ooodist
    strategy = fit.strategy
    best_weights: Sequence[np.ndarray | None] | None = None
    if source is not None:
        if strategy.has_whole_optimizer:
            best_weights = resume.restore(engine, source, model)
        elif config.parallel is None:
            strategy.broadcast_weights()  # now each rank has its part
            with strategy.inner.in_parts(returns=True):
                best_weights = resume.restore_own(engine, source, model)
        resume.restore_rank_state(engine, source, strategy.inner.rank_state)
        logger.info("resuming after %s from %s", source.state.where(), source.file)
    fit.begin_batches(data.train.element_spec)
    if strategy.needs_plan:
        logger.info("planning: measuring the model and the network")
        left = config.epochs - (0 if state is None else state.epoch)
        updates = max(1, (left * steps - done) // config.accumulate)
        strategy.plan(next(iter(data.train)), updates)
    if config.parallel is not None:  # now ranks have their stages
        if source is not None:
            best_weights = resume.restore_own(engine, source, model)
        elif config.model.weights_file is not None:
            with engine.agreed():
                start = config.model
                assert start.weights_file is not None
                models.load_start_weights(model, start.weights_file, start.other_heads)
    if state is not None and state.selection is not None:
        strategy.restore_selection(state.selection)
    if state is not None and state.within is not None:
        fit.go_on(done, functools.partial(within_epoch.restore, engine, model, state))
    if engine.rank == 0:
        strategy.write_plan(folder)
        (folder / CONFIG_NAME).write_text(job_file.to_yaml(config), encoding="utf-8")
    return PreparedJob(
        *(config, engine, folder, source, data, model),
        *(steps, first_step, best_weights, done, callbacks),
    )


def _measure_layers(config: Config, engine: Engine) -> ModelCosts:
    """Measures layers and links before the ranks are divided; the costs are on rank 0.

    All ranks call it, with a job that is one pipeline of all of them.
    """
    assert config.parallel is not None
    assert engine.world is not None
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
    has_barrier = needs_all_gradients(model.optimizer, skips=config.on_nan == "skip")
    keras.utils.clear_session()  # so that layers of the model to be trained have the same names
    return ModelCosts(layers, measure_link(engine.world), has_barrier=has_barrier)


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
