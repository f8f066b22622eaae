"""The sizes of pipelines that the options of ``python -m ooodist.plan`` ask for, or else the job.

With ``--devices``, a fixed number of devices and micro-batches is divided among replicas::

    --devices 8 --microbatches 16      pipeline 8   data 1   16 micro-batches each
                                                4        2    8
                                                2        4    4
                                                1        8    2
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from ooodist.errors import UserError
from ooodist.plan.options import joined
from ooodist.planner.pipeline.plan import chunks_of_split
from ooodist.planner.placement.division import ways_to_divide
from ooodist.report.pipeline.outcomes import Setting
from ooodist.settings.sections import ParallelConfig

logger = logging.getLogger("ooodist")


def settings_of(options: argparse.Namespace, parallel: ParallelConfig) -> list[Setting]:
    """The sizes of all pipelines to plan.

    Args:
        options: the command line.
        parallel: the job's settings, which count where an option is not given.

    Raises:
        UserError: the options contradict each other or the job, or say too little.
    """
    microbatches = _microbatches(options, parallel)
    if options.devices:
        sizes = _divided(options, parallel, microbatches[0])
    else:
        ranks, replicas = options.pipeline or [parallel.pipeline], options.data or [parallel.data]
        sizes = [
            Setting(rank, number, replicas=data)
            for rank, number, data in product(ranks, microbatches, replicas)
        ]
    is_sharded = options.shard_optimizer or parallel.shard_optimizer
    if options.shard_optimizer and all(size.replicas == 1 for size in sizes):
        raise UserError(
            "--shard-optimizer (or parallel.shard_optimizer) divides the optimizer state among "
            "replicas of the pipeline, but there is one pipeline; give --data 2 or --devices 32, "
            "or leave it out"
        )
    return [
        replace(size, chunks=number, shard_optimizer=is_sharded and size.replicas > 1)
        for size in sizes
        for number in _chunks(options, parallel, size.ranks)
    ]


def with_devices_of(
    options: argparse.Namespace, parallel: ParallelConfig
) -> tuple[argparse.Namespace, ParallelConfig]:
    """Options that divide the devices of a job with ``parallel.devices``, unless they say
    themselves how large pipelines are; and the job's settings without them."""
    given = dict(vars(options))
    if not (options.pipeline or options.data or options.hosts):
        given["devices"] = options.devices or parallel.devices
    if given["devices"]:
        given["microbatches"] = options.microbatches or [parallel.microbatches]
    # Without devices, it would need replicas, which the options have yet to say.
    given["shard_optimizer"] = options.shard_optimizer or parallel.shard_optimizer
    return argparse.Namespace(**given), replace(parallel, devices=None, shard_optimizer=False)


def _microbatches(options: argparse.Namespace, parallel: ParallelConfig) -> list[int]:
    """The micro-batches of a pipeline, or with ``--devices`` those of all replicas."""
    given: list[int] = options.microbatches or []
    if options.devices and len(given) > 1:
        raise UserError(
            f"--microbatches is {joined(given)}, but --devices divides the "
            "micro-batches of one step among replicas; give one number"
        )
    if given:
        return given
    if parallel.pipeline > 1:
        return [parallel.microbatches * (parallel.data if options.devices else 1)]
    raise UserError(
        f"{'--devices' if options.devices else '--pipeline'} needs --microbatches as well, into "
        "which a batch is split; give --pipeline 4 --microbatches 8"
    )


def _divided(
    options: argparse.Namespace, parallel: ParallelConfig, microbatches: int
) -> list[Setting]:
    """All ways to divide devices and micro-batches, of those that the options allow."""
    devices = options.devices * (options.hosts or [1])[0]  # without hosts, they are of one
    pairs = ways_to_divide(devices)
    wanted = [
        (rank, data)
        for rank, data in pairs
        if rank in (options.pipeline or [rank]) and data in (options.data or [data])
    ]
    if not wanted:
        possible = ", ".join(f"{rank} x {data}" for rank, data in pairs)
        raise UserError(
            f"--devices makes {devices} in all, which is not --pipeline x --data; pipeline x data "
            f"can be {possible}: leave both out to plan them all"
        )
    reasons = {pair: _why_not(parallel, microbatches, *pair) for pair in wanted}
    if all(reasons.values()):
        raise UserError("; ".join(reasons.values()))
    for reason in filter(None, reasons.values()):
        logger.warning("left out: %s", reason)
    return [
        Setting(rank, microbatches // data, replicas=data)
        for rank, data in wanted
        if not reasons[rank, data]
    ]


def _why_not(parallel: ParallelConfig, microbatches: int, ranks: int, replicas: int) -> str:
    """Why devices cannot be divided in this way; empty if they can."""
    if microbatches % replicas:
        return (
            f"{microbatches} micro-batches cannot be divided among {replicas} replicas (pipeline "
            f"{ranks}); make --microbatches a multiple of {replicas}"
        )
    stages = 0 if parallel.split is None else len(parallel.split) + 1
    if stages % ranks:
        return (
            f"the {stages} stages of parallel.split cannot be divided among {ranks} ranks (data "
            f"{replicas}); leave parallel.split out"
        )
    return ""


def _chunks(
    options: argparse.Namespace, parallel: ParallelConfig, ranks: int
) -> Sequence[int | None]:
    """The numbers of stages per rank."""
    if parallel.split is None:
        return options.chunks or [parallel.chunks]
    if options.chunks:
        raise UserError(
            f"--chunks is {joined(options.chunks)}, but parallel.split says what the stages are; "
            "leave the one or the other out"
        )
    return [chunks_of_split(len(parallel.split) + 1, ranks)]
