"""Plans data parallel training for ``python -m ooodist.plan``, from costs or from a job."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ooodist.config.job import Config
from ooodist.engines import detect
from ooodist.engines.kinds import find
from ooodist.errors import UserError
from ooodist.plan.described import described_clusters
from ooodist.plan.measuring import in_this_process
from ooodist.plan.options import DEFAULT_ENGINE, DESCRIBED_ENGINES, output_of
from ooodist.planner.costs import StepCosts
from ooodist.planner.data_parallel.search import Limits, in_wire
from ooodist.report.data_parallel.plan_table import Cluster, Subject
from ooodist.settings.sections import ExchangeConfig, PlanningConfig
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")


def plan_costs(options: argparse.Namespace) -> str:
    """Plans from the costs in a file and returns the text to print. Raises UserError."""
    clusters = described_clusters(options, options.engine or DEFAULT_ENGINE)
    if not clusters:
        raise UserError(
            f"--costs {options.costs} says nothing of the network; describe it, as "
            "--workers 64 --bandwidth 10Gbit --latency 30us"
        )
    planning = _planning(options, PlanningConfig())
    limits = Limits(planning.memory_bytes, planning.max_steps_per_execution)
    costs = yaml_dataclass.read_file(StepCosts, options.costs, "--costs")
    subject = Subject(options.costs.stem, costs)
    return _plan(options, subject, clusters, limits, ExchangeConfig(), output_of(options))


def plan_job(options: argparse.Namespace, config: Config) -> tuple[int, str]:
    """Measures a job and plans; returns the exit code and the text to print.

    There is a text on rank 0 only, if measuring has not failed. Raises UserError.
    """
    config = with_options(options, config)
    output = output_of(options, config.output)
    engine = config.engine if config.engine in DESCRIBED_ENGINES else DEFAULT_ENGINE
    clusters = described_clusters(options, engine)
    to_measure = _config_to_measure(config, is_described=bool(clusters))
    # Imported late, because it imports TensorFlow, which takes seconds.
    from ooodist.job import measurement

    code, measured = measurement.run(to_measure, output)
    if measured is None:
        return code, ""
    profile, exchange = measured.profile, config.exchange
    subject = Subject(measured.title, profile.costs, profile.model, exchange.rows == "auto")
    clusters = clusters or [Cluster(profile.network)]
    return 0, _plan(options, subject, clusters, measured.limits, exchange, output)


def with_options(options: argparse.Namespace, config: Config) -> Config:
    """The job, with the options in the place of its keys."""
    if options.steps_per_execution is not None:
        config = replace(config, steps_per_execution=None)
    planning = _planning(options, config.planning)
    return replace(config, planning=planning, engine=options.engine or config.engine)


def _planning(options: argparse.Namespace, planning: PlanningConfig) -> PlanningConfig:
    most = options.steps_per_execution or planning.max_steps_per_execution
    return replace(
        planning,
        profile_anew=options.profile or planning.profile_anew,
        memory_bytes=options.memory or planning.memory_bytes,
        max_steps_per_execution=most,
    )


def _config_to_measure(config: Config, *, is_described: bool) -> Config:
    """The job with the engine on which it is measured.

    Raises UserError if this process was not started the way that engine needs.
    """
    if not is_described:
        name, reason = detect.choose(config.engine, os.environ, config.workers)
        if find(name).is_alone:
            raise UserError(
                f"there is nothing to plan for one worker (engine local: {reason}); start the "
                "workers with a launcher, as python -m ooodist.launch -np 2 --engine horovod -- "
                "python -m ooodist.plan …, or describe a cluster, as --workers 64 "
                "--bandwidth 10Gbit --latency 30us"
            )
        return config
    return in_this_process(
        config,
        "--workers describes a cluster, but this process",
        "leave --workers and --bandwidth out to plan for the workers that were started, or start "
        "it with plain python",
    )


def _plan(
    options: argparse.Namespace,
    subject: Subject,
    clusters: Sequence[Cluster],
    limits: Limits,
    exchange: ExchangeConfig,
    output: Path,
) -> str:
    # Imported late, as Matplotlib loads slowly and errors in the options need not wait for it.
    from ooodist.report.data_parallel.planned import plan_clusters

    network, is_described = clusters[0].network, bool(clusters[0].bandwidth)
    if is_described and not network.by_urgency:  # else the engine starts with the plan's credit
        limits = replace(limits, credits=find(network.engine).credits)
    wire, low_rank = options.wire or exchange.wire, options.low_rank or exchange.low_rank
    limits = in_wire(replace(limits, carrying=options.carried), wire, low_rank)
    logger.setLevel(logging.INFO)
    return plan_clusters(subject, clusters, limits, output)
