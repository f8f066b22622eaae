"""From settings to a model that trains: what ``distribute``, ``pipelined`` and job files share.

::

    Training ──> DataParallel, one that tries plans or XLA, or Pipeline
                     └──> in Elastic, if only some of the weights are trained
                              └──> DistributedFit, which replaces the model's fit and evaluate
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import keras

from ooodist import engines
from ooodist.data_parallel.compiled_strategy import CompiledDataParallel
from ooodist.data_parallel.data_parallel_strategy import DataParallel
from ooodist.data_parallel.live_strategy import LiveDataParallel
from ooodist.engines import kinds
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.job.division import check_devices, choose_replicas, with_replicas
from ooodist.pipeline.holding import build_model
from ooodist.pipeline.pipeline_strategy import Pipeline
from ooodist.settings.training import Training
from ooodist.step.sharding.sharded import check_model
from ooodist.trainer.fit import DistributedFit
from ooodist.trainer.strategy import Strategy

if TYPE_CHECKING:
    from ooodist.elastic.elastic_strategy import Selective

logger = logging.getLogger("ooodist")


def compose(model: keras.Model | Callable[[], keras.Model], training: Training) -> keras.Model:
    """Makes a model train on all ranks as the settings say, and returns it.

    Args:
        model: the model; for a pipeline, it may be a function that builds it.
        training: the settings.

    Raises:
        UserError: there is no engine, or the settings do not fit it or the model.
    """
    engine = engines.current()
    make = _data_parallel if training.parallel is None else _pipeline
    strategy = make(model, engine, training)
    DistributedFit(strategy)
    return strategy.model


def _data_parallel(model: keras.Model, engine: Engine, training: Training) -> Strategy:
    if training.tries_plans and training.jit_compile and engine.size == 1:
        logger.info(
            "order planned: there is one worker, so no plan is tried, only steps that XLA compiles"
        )
        training = replace(training, order="inorder")
    _check_for_engine(engine, training)
    if training.shard_optimizer:
        check_can_be_sharded(model, engine)
    kind: type[DataParallel] = DataParallel
    if training.tries_plans and engine.size > 1:
        kind = LiveDataParallel
    elif training.may_compile and training.order == "inorder":  # alone, no plan is tried
        kind = CompiledDataParallel
    strategy = kind(model, engine, training)
    if training.elastic is None:
        return strategy
    from ooodist.elastic.data_parallel import SelectiveDataParallel  # imports SciPy

    return _elastic(SelectiveDataParallel(strategy))


def _check_for_engine(engine: Engine, training: Training) -> None:
    """Raises UserError for settings that do not fit this engine, and logs what others mean."""
    if training.sum_rows is False and engine.size > 1:
        raise UserError(
            f"sum_rows is False, but {engine.size} workers add up their rows; leave it out"
        )
    if training.on_nan == "skip" and engine.size > 1:
        logger.info(
            "on_nan skip: weights are updated when all gradients of a step are there, so the next "
            "forward pass does not overlap their exchange"
        )
    if training.wire != "float32":
        is_kept = training.exchange.error_feedback
        logger.info(
            "wire %s: %s",
            training.wire,
            "there is one worker, so nothing travels"
            if engine.size == 1
            else f"what a gradient loses is {'added to the next' if is_kept else 'lost'}",
        )


def check_can_be_sharded(model: keras.Model, engine: Engine) -> None:
    """Raises UserError if no engine or optimizer like these can have ``shard_optimizer``."""
    if engine.size == 1:
        logger.info(
            "shard_optimizer: there is one worker, which keeps all of the optimizer's state"
        )
    elif not engine.kind.broadcasts:
        servers = ": its servers add up gradients, and send the sums to all workers"
        able = ", ".join(name for name in kinds.names() if kinds.find(name).broadcasts)
        raise UserError(
            f"shard_optimizer is true, but with the engine {engine.name} no worker can send the "
            f"others what it has updated{servers if engine.kind.has_servers else ''}; take one of "
            f"{able}, or leave shard_optimizer out"
        )
    if model.compiled:
        check_model(model)


def _pipeline(
    model: keras.Model | Callable[[], keras.Model], engine: Engine, training: Training
) -> Strategy:
    if not engine.kind.runs_pipelines:
        raise UserError(
            f"the engine is {engine.name}, but pipelines run over MPI; start with "
            f'ooodist.init("{kinds.for_pipelines().name}"), under mpirun'
        )
    parallel = training.parallel
    assert parallel is not None
    if parallel.devices is not None:
        with engine.agreed():
            check_devices(parallel.devices, engine.size)
        parallel = with_replicas(parallel, choose_replicas(parallel, engine, None))
    if not isinstance(model, keras.Model):
        with engine.agreed():
            model = build_model(model)
    strategy = Pipeline(model, engine, replace(training, parallel=parallel))
    if training.elastic is None:
        return strategy
    from ooodist.elastic.pipeline import SelectivePipeline  # imports SciPy

    return _elastic(SelectivePipeline(strategy))


def _elastic(selective: Selective) -> Strategy:
    from ooodist.elastic.elastic_strategy import Elastic  # imports SciPy
    from ooodist.transfer import provenance

    return Elastic(selective, provenance.not_copied)
