"""Plans a job, predicts its steps and draws them, without training (``python -m ooodist.plan``)."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ooodist.config import job as job_file
from ooodist.config.job import Config
from ooodist.engines import detect
from ooodist.engines.kinds import find
from ooodist.engines.kinds.local import Local
from ooodist.errors import UserError
from ooodist.plan import pipelines as plan_pipeline
from ooodist.plan.options import (
    DEFAULT_ENGINE,
    DEFAULT_LATENCY,
    DEFAULT_OUTPUT,
    DESCRIBED_ENGINES,
    FOLDER_NAME,
    parse,
    parse_low_rank,
    parse_memory,
    whole_number,
)
from ooodist.planner.cluster import describe_network, parse_bandwidth, parse_latency
from ooodist.planner.costs import StepCosts
from ooodist.planner.data_parallel.search import Limits, in_wire
from ooodist.report.data_parallel.plan_table import Cluster, Subject
from ooodist.settings.sections import PlanningConfig
from ooodist.util import program, yaml_dataclass
from ooodist.util.program import refused

logger = logging.getLogger("ooodist")


def main(arguments: Sequence[str]) -> int:
    """Plans what a command line asks for and returns the exit code."""
    try:
        options = parse(arguments)
        if options.costs is not None:
            _check_nothing_is_measured(options)
            plan_pipeline.check_kind_of_costs(options)
            if plan_pipeline.has_pipeline(options):
                return plan_pipeline.plan_costs(options)
            return _plan_costs(options)
        if plan_pipeline.has_pipeline(options):
            plan_pipeline.check_options(options)
        config = _config(options)
        if plan_pipeline.is_asked_for(options, config):
            return plan_pipeline.plan_job(options, config)
        output = Path(options.output or Path(config.output) / FOLDER_NAME)
        clusters = _described_clusters(options, config.engine)
        exchange = config.exchange
        config = _config_to_measure(config, is_described=bool(clusters))
    except UserError as error:
        return refused(error)
    # Imported late, because it imports TensorFlow, which takes seconds.
    from ooodist.job import measurement

    code, measured = measurement.run(config, output)
    if measured is None:  # measuring failed, or this is not rank 0
        return code
    profile = measured.profile
    rows = config.exchange.rows == "auto"
    subject = Subject(measured.title, profile.costs, profile.model, rows)
    limits = replace(_as_trained(measured.limits, clusters), carrying=options.carried)
    rank = parse_low_rank(options.low_rank) or exchange.low_rank
    limits = in_wire(limits, options.wire or exchange.wire, rank)
    try:
        _plan(subject, clusters or [Cluster(profile.network)], limits, output)
    except UserError as error:
        return refused(error)
    return 0


def _plan(subject: Subject, clusters: Sequence[Cluster], limits: Limits, output: Path) -> None:
    # Imported late, as Matplotlib loads slowly and errors in the options need not wait for it.
    from ooodist.report.data_parallel.planned import plan_clusters

    logger.setLevel(logging.INFO)
    print(plan_clusters(subject, clusters, limits, output), flush=True)


def _check_nothing_is_measured(options: argparse.Namespace) -> None:
    """Raises UserError for options of measuring a job, which --costs makes meaningless."""
    given = [
        name
        for name, value in (
            ("--config", options.config),
            ("--set", options.overrides),
            ("--profile", options.profile),
        )
        if value
    ]
    if given:
        raise UserError(
            f"--costs {options.costs} takes the place of measuring a job, so {given[0]} has no "
            "meaning; leave out the one or the other"
        )


def _plan_costs(options: argparse.Namespace) -> int:
    clusters = _described_clusters(options, "auto")
    if not clusters:
        raise UserError(
            f"--costs {options.costs} says nothing of the network; describe it, as "
            "--workers 64 --bandwidth 10Gbit --latency 30us"
        )
    planning = _planning(options, PlanningConfig())
    limits = Limits(
        memory_bytes=planning.memory_bytes,
        max_steps_per_execution=planning.max_steps_per_execution,
        carrying=options.carried,
    )
    limits = in_wire(limits, options.wire or "float32", parse_low_rank(options.low_rank))
    costs = yaml_dataclass.read_file(StepCosts, options.costs, "--costs")
    subject = Subject(options.costs.stem, costs)
    output = Path(options.output or DEFAULT_OUTPUT)
    _plan(subject, clusters, _as_trained(limits, clusters), output)
    return 0


def _as_trained(limits: Limits, described: Sequence[Cluster]) -> Limits:
    """The limits with the credits that training on the described clusters could use."""
    if not described or described[0].network.by_urgency:  # the engine starts with the plan's credit
        return limits
    return replace(limits, credits=find(described[0].network.engine).credits)


def _config(options: argparse.Namespace) -> Config:
    config = job_file.load(options.config, options.overrides)
    if not plan_pipeline.is_asked_for(options, config):  # pipelines read these options themselves
        config = replace(config, planning=_planning(options, config.planning))
    if options.steps_per_execution is not None:
        config = replace(config, steps_per_execution=None)  # the option takes the place of the key
    if options.engine is not None:
        config = replace(config, engine=options.engine)
    return config


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
    name, reason = detect.detect(os.environ)
    if not find(name).is_alone:
        raise UserError(
            f"--workers describes a cluster, but this process was started for engine {name} "
            f"({reason}); leave --workers and --bandwidth out to plan for the workers that were "
            "started, or start it with plain python"
        )
    return replace(config, engine=Local.name, workers=None)


def _described_clusters(options: argparse.Namespace, engine: str) -> list[Cluster]:
    """The clusters that --workers, --hosts etc. describe; empty without such options."""
    given = {
        "--workers": options.workers,
        "--hosts": options.hosts,
        "--bandwidth": options.bandwidth,
        "--devices": options.devices,
        "--inside": options.inside,
        "--latency": options.latency,
        "--servers": options.servers,
    }
    if not any(given.values()):
        return []
    if options.workers and options.hosts:
        raise UserError("--workers and --hosts both say how large the cluster is; give one of them")
    size = "--hosts" if options.hosts or options.devices else "--workers"
    for name in (size, "--bandwidth"):
        if not given[name]:
            other = next(option for option, value in given.items() if value)
            raise UserError(
                f"{other} describes a cluster, which needs {name} as well; give "
                "--workers 64 --bandwidth 10Gbit --latency 30us, or none of them"
            )
    devices = whole_number(options.devices or "1", "--devices", least=1)
    if (devices > 1) != bool(options.inside):
        raise UserError(
            f"--devices is {devices} and --inside {options.inside or 'not given'}; hosts with "
            "several devices have links inside, as --devices 8 --inside 1600Gbit"
        )
    inside = parse_bandwidth(options.inside, "--inside") if options.inside else None
    chosen = options.engine or (engine if engine in DESCRIBED_ENGINES else DEFAULT_ENGINE)
    latency = options.latency or DEFAULT_LATENCY
    latency_seconds = parse_latency(latency, "--latency")
    servers = None
    if options.servers is not None:
        servers = whole_number(options.servers, "--servers", least=1)
    least = 2 if devices == 1 else 1
    clusters = []
    for bandwidth in options.bandwidth:
        bits_per_second = parse_bandwidth(bandwidth, "--bandwidth")
        for number in given[size]:
            network = describe_network(
                chosen,
                devices * whole_number(number, size, least=least),
                bits_per_second,
                latency_seconds,
                servers=servers,
                devices=devices,
                inside=inside,
            )
            clusters.append(Cluster(network, bandwidth, latency, servers, devices))
    return clusters


def _planning(options: argparse.Namespace, planning: PlanningConfig) -> PlanningConfig:
    """The planning settings, overridden by the options."""
    if options.profile:
        planning = replace(planning, profile_anew=True)
    if options.memory is not None:
        planning = replace(planning, memory_bytes=parse_memory(options.memory))
    if options.steps_per_execution is not None:
        most = whole_number(options.steps_per_execution, "--steps-per-execution", least=1)
        planning = replace(planning, max_steps_per_execution=most)
    return planning


command = functools.partial(program.run, main)  # ooodist-plan

if __name__ == "__main__":
    sys.exit(command())
