"""``ooodist.pipelined``: makes a Keras model train on a pipeline of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from ooodist.job.compose import compose
from ooodist.settings.elastic import ElasticConfig, read_elastic
from ooodist.settings.sections import ParallelConfig, PlanningConfig
from ooodist.settings.training import OnNan, Training


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
        schedule: a name (see planner/pipeline/named/kinds.py), ``auto`` (whatever turns out to be
            the fastest while the model trains; it begins with the best known one), or a CSV file.
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
        timeout=timeout,
    )
    return compose(model, training)
