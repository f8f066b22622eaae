"""``parallel.devices``: chooses how many ranks share the layers, and how many the samples.

The samples of an update are the same for each choice, and so are its micro-batches and their size:
the replicas divide them. So the choice does not change what is trained, only how fast.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ooodist.checkpoint.state import State
from ooodist.config.job import Config
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import ModelCosts, read_model_costs
from ooodist.planner.placement.division import Division, described, divide
from ooodist.settings.sections import ParallelConfig
from ooodist.step.all_ranks.objects import text_of_rank

logger = logging.getLogger("ooodist")


def divided(
    config: Config,
    engine: Engine,
    state: State | None,
    measure: Callable[[Config], ModelCosts],
) -> Config:
    """The job with ``pipeline`` and ``data`` in the place of ``devices``, the same on all
    ranks; ``batch`` and ``microbatches`` are then those of one pipeline.

    A job that goes on is divided as before, if it has as many devices, samples and micro-batches.

    Args:
        config: the job.
        engine: the engine that connects the ranks.
        state: of the checkpoint to resume from, if any.
        measure: returns on rank 0 the costs of the layers of a job that is one pipeline; all ranks
            call it, unless ``parallel.costs`` names a file.

    Raises:
        UserError: on all ranks, if another number of processes was started, or there is no way.
    """
    parallel = config.parallel
    if parallel is None or parallel.devices is None:
        return config
    with engine.agreed():
        check_devices(parallel.devices, engine.size)
    replicas = None if state is None else _replicas_before(config, state)
    if replicas is not None:
        way = f"{parallel.devices // replicas} x {replicas}"
        logger.info("parallel.devices %d: %s, as before", parallel.devices, way)
    else:
        costs = None if parallel.costs else measure(_with(config, 1))
        replicas = choose_replicas(parallel, engine, costs, config.batch)
    return _with(config, replicas)


def check_devices(devices: int, size: int) -> None:
    """Raises UserError unless as many processes were started as there are devices."""
    if devices != size:
        raise UserError(
            f"parallel.devices is {devices}, but {size} process{'es were' if size > 1 else ' was'} "
            f"started, one for each device; start {devices}, as mpirun -np {devices} python -m "
            f"ooodist.train …, or set parallel.devices to {size}"
        )


def choose_replicas(
    parallel: ParallelConfig, engine: Engine, costs: ModelCosts | None, samples: int | None = None
) -> int:
    """The number of pipelines with which a step is fastest; all ranks call it.

    Args:
        parallel: has ``devices``; ``microbatches`` are those of all pipelines.
        engine: the engine that connects the ranks.
        costs: of the layers, on rank 0; None: those of ``parallel.costs``.
        samples: of a step, in all pipelines, for the log; None if they are not known.

    Raises:
        UserError: on all ranks, if no number is possible.
    """
    return int(text_of_rank(engine, lambda: str(_best(parallel, costs, samples).replicas)))


def _best(parallel: ParallelConfig, costs: ModelCosts | None, samples: int | None) -> Division:
    assert parallel.devices is not None
    if costs is None:
        if parallel.costs is None:
            raise UserError(
                f"devices is {parallel.devices}, but there are no costs by which they could be "
                "divided; give a file with those of the layers, as "
                'costs="costs.yaml", which python -m ooodist.plan writes, or pipeline and data'
            )
        costs = read_model_costs(Path(parallel.costs), "parallel.costs")
    costs = replace(costs, memory_limit=parallel.memory_bytes, recompute=parallel.recompute)
    ways = divide(
        costs,
        parallel.devices,
        parallel.microbatches,
        parallel.schedule,
        parallel.chunks,
        shard_optimizer=parallel.shard_optimizer,
    )
    words = described(ways, samples)
    if ways[0].plan is None:
        raise UserError(
            f"parallel.devices is {parallel.devices}, which cannot be divided among the stages of "
            f"pipelines x replicas ({words}); raise parallel.memory_bytes, start more processes, "
            "or make micro-batches smaller with more parallel.microbatches"
        )
    logger.info(
        "parallel.devices %d: chose pipeline %d x data %d, as predicted the fastest; %s",
        *(parallel.devices, ways[0].ranks, ways[0].replicas, words),
    )
    return ways[0]


def _replicas_before(config: Config, state: State) -> int | None:
    """The number of pipelines that a checkpoint's job had; None if it was another job."""
    before, parallel = state.config.get("parallel"), config.parallel
    assert parallel is not None
    if not before:
        return None
    data = before["data"]
    there = before["pipeline"] * data, before["microbatches"] * data, state.batch * data
    is_same = there == (parallel.devices, parallel.microbatches, config.batch)
    return int(data) if is_same else None


def with_replicas(parallel: ParallelConfig, replicas: int) -> ParallelConfig:
    """The settings of so many pipelines, which use all devices."""
    assert parallel.devices is not None
    return replace(
        parallel,
        devices=None,
        pipeline=parallel.devices // replicas,
        data=replicas,
        microbatches=parallel.microbatches // replicas,
        shard_optimizer=parallel.shard_optimizer and replicas > 1,
    )


def _with(config: Config, replicas: int) -> Config:
    assert config.parallel is not None
    parallel = with_replicas(config.parallel, replicas)
    return replace(config, parallel=parallel, batch=config.batch // replicas)
