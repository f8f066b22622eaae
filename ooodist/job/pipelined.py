"""``ooodist.pipelined``: makes a Keras model train on a pipeline of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from ooodist import engines
from ooodist.engines.mpi import MpiEngine
from ooodist.errors import UserError
from ooodist.job.division import check_devices, choose_replicas, with_replicas
from ooodist.pipeline.holding import build_model
from ooodist.pipeline.pipeline_strategy import Pipeline, check_model
from ooodist.settings.elastic import ElasticConfig, read_elastic
from ooodist.settings.sections import ParallelConfig, PlanningConfig
from ooodist.settings.training import OnNan, Training
from ooodist.step.all_ranks.batch_norm import synchronized_layers
from ooodist.trainer.fit import DistributedFit
from ooodist.trainer.strategy import Strategy


def pipelined(
    model: keras.Model | Callable[[], keras.Model],
    *,
    microbatches: int,
    pipeline: int = 1,
    data: int = 1,
    devices: int | None = None,
    schedule: str = "auto",
    chunks: int | None = None,
    split: Sequence[str] | None = None,
    costs: str | None = None,
    recompute: bool = False,
    memory_bytes: int | None = None,
    shard_optimizer: bool = False,
    timeout: float | None = None,
    planning: PlanningConfig | None = None,
    elastic: ElasticConfig | Mapping[str, Any] | None = None,
    on_nan: OnNan = "stop",
) -> keras.Model:
    """Makes ``fit``, ``evaluate`` and ``predict`` of a model work on a pipeline of ranks, over MPI.

    The computation is that of one process that accumulates the gradients of the micro-batches.
    Each rank has the weights, gradients, optimizer state and statistics of its own stages alone,
    from the first ``fit`` on, and from the beginning where a function builds the model: all ranks
    make all layers, but only the values of weights that they need. What a rank does not have is NaN
    in ``model.get_weights()``, and an error elsewhere; ``with ooodist.whole(model):`` gives all
    ranks the whole model.
    Whole batches of any size go through the stages in an evaluation and in a prediction. Arrays are
    sharded over the pipelines; of anything else, all ranks of a pipeline must yield the same.
    Metrics are returned on all ranks. ``predict`` returns the predictions on rank 0, in the order
    of the samples (those of a data set: pipeline after pipeline), and None on the other ranks.

    Args:
        model: functional or sequential, and compiled; or a function that returns such a model, the
            same on all ranks. Weights have the values that the function would give them.
        microbatches: micro-batches per batch.
        pipeline: ranks per pipeline.
        data: number of pipelines, which share the samples; ranks are ``pipeline * data``.
        devices: in place of both, the number of ranks; what ``costs``, which must be given, predict
            to be the fastest is chosen. ``microbatches`` are then those of all pipelines, of which
            there are ``model.ooodist.strategy.shard[1]``: a batch of each is that part of all
            samples of an update.
        schedule: a name (see planner/pipeline/schedules.py), ``auto`` (whatever turns out to be the
            fastest while the model trains; it begins with the best known one), or a CSV file.
        chunks: stages per rank; None for the usual number of the schedule.
        split: names of the layers with which a new stage begins; None for balanced stages.
        costs: a file with the costs of the layers, as ``python -m ooodist.plan`` writes it; None to
            measure them, each rank a part.
        recompute: compute activations again instead of saving them.
        memory_bytes: limit on what a rank keeps: weights, optimizer state, summed gradients,
            activations and messages of its stages, in bytes; None for no limit.
        shard_optimizer: keep the optimizer state of each weight in one of the ``data`` pipelines
            alone, which updates the weight for all (ZeRO stage 1).
        timeout: seconds that a rank waits for a message; None: ten times the longest step so far,
            and 60 at least.
        planning: for the schedule ``auto``: without ``trial`` it is found before the first step (as
            always with ``elastic``), and ``share`` is the largest share of the training's time that
            trying may take.
        elastic: train only the weights that matter most; see :func:`ooodist.distribute`.
        on_nan: what happens if a gradient is not finite: ``stop``, ``skip`` or ``ignore``; see
            :func:`ooodist.distribute`. With ``skip``, the ranks agree before each update.

    Returns:
        the model.

    Raises:
        UserError: the engine is not mpi, the function needs values of weights, the model cannot be
            trained in a pipeline, or an argument is impossible.
    """
    parallel = ParallelConfig(
        pipeline=pipeline,
        data=data,
        devices=devices,
        microbatches=microbatches,
        schedule=schedule,
        chunks=chunks,
        split=None if split is None else tuple(split),
        costs=costs,
        recompute=recompute,
        memory_bytes=memory_bytes,
        shard_optimizer=shard_optimizer,
    )
    training = Training(
        parallel=parallel,
        planning=planning or PlanningConfig(),
        elastic=read_elastic(elastic),
        on_nan=on_nan,
    )
    return in_stages(model, training, timeout)


def in_stages(
    model: keras.Model | Callable[[], keras.Model], training: Training, timeout: float | None
) -> keras.Model:
    """Makes a model, or one that a function builds, train as :func:`pipelined` says."""
    parallel = training.parallel
    assert parallel is not None
    engine = engines.current()
    if not isinstance(engine, MpiEngine):
        raise UserError(
            f"the engine is {engine.name}, but pipelines run over MPI; start with "
            f'ooodist.init("{MpiEngine.name}"), under mpirun'
        )
    if parallel.devices is not None:
        with engine.agreed():
            check_devices(parallel.devices, engine.size)
            if parallel.costs is None:
                raise UserError(
                    f"devices is {parallel.devices}, but there are no costs by which they could be "
                    "divided; give a file with those of the layers, as "
                    'costs="costs.yaml", which python -m ooodist.plan writes, or pipeline and data'
                )
        parallel = with_replicas(parallel, choose_replicas(parallel, engine, None))
    if not isinstance(model, keras.Model):
        with engine.agreed():
            model = build_model(model)
    check_model(model)
    if parallel.data > 1 and (layers := synchronized_layers(model)):
        raise UserError(
            f"layer {layers[0].name} is a BatchNormalization with synchronized=True, but data is "
            f"{parallel.data}: pipelines normalize each micro-batch by itself; take "
            "synchronized=False"
        )
    inner = Pipeline(model, engine, replace(training, parallel=parallel), timeout)
    strategy: Strategy = inner
    if training.elastic is not None:
        from ooodist.elastic.elastic_strategy import Elastic
        from ooodist.elastic.pipeline import SelectivePipeline  # imports SciPy
        from ooodist.transfer import provenance

        strategy = Elastic(SelectivePipeline(inner), training.elastic, provenance.not_copied)
    DistributedFit(strategy)
    return model
