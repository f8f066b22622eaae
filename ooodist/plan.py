"""``python -m ooodist.plan``: plan a job, predict, draw; trains nothing; ``--help`` shows how."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ooodist import config as job_file
from ooodist import yaml_dataclass
from ooodist.config import Config, PlanningConfig
from ooodist.engines import detect
from ooodist.engines.settings import planned_credits
from ooodist.errors import UserError
from ooodist.report.plan_table import Cluster, Subject
from ooodist.schedule.cluster import describe_network, parse_bandwidth, parse_latency
from ooodist.schedule.costs import StepCosts
from ooodist.schedule.search import Limits

USER_ERROR_CODE = 2

EXAMPLES = """\
examples:
  # this job on the workers that a launcher starts: measures the model and the network, and plans
  python launch/local.py -np 2 --engine horovod -- python -m ooodist.plan --config job.yaml
  horovodrun -np 2 python -m ooodist.plan --config job.yaml --output plans
  # ... which the training then carries out
  horovodrun -np 2 python -m ooodist.train --config job.yaml --plan plans/plan.yaml

  # this job on a cluster that one does not have: measures the model here, describes the network
  python -m ooodist.plan --config job.yaml --workers 64 --bandwidth 10Gbit --latency 30us
  python -m ooodist.plan --config job.yaml --workers 16 --bandwidth 25Gbit \\
      --engine byteps --servers 16 --memory 12GiB

  # many clusters, from costs that were measured before (costs.yaml is among the output)
  python -m ooodist.plan --costs plans/costs.yaml --workers 2 8 64 --bandwidth 10Gbit 100Gbit

exit code: 0 when the plans are written, 2 for what you can put right, 1 for anything else.
"""

logger = logging.getLogger("ooodist")

DESCRIBED_ENGINES = ("horovod", "byteps", "collective")
DEFAULT_ENGINE = "horovod"  # of a described cluster
DEFAULT_LATENCY = "50us"  # of a described cluster: two hosts and a switch between them
DEFAULT_OUTPUT = "runs/plan"  # where there is no job that has one
FOLDER_NAME = "plan"  # in the output of a job
_POWER_OF_TWO = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_MEMORY = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_POWER_OF_TWO)})")


def main(arguments: Sequence[str]) -> int:
    """Plans what a command line asks for and returns the exit code."""
    try:
        options = _parse(arguments)
        if options.costs is not None:
            return _plan_costs(options)
        config = _config(options)
        output = Path(options.output or Path(config.output) / FOLDER_NAME)
        clusters = _described_clusters(options, config.engine)
        config = _config_to_measure(config, is_described=bool(clusters))
    except UserError as error:
        return _wrong(error)
    # Later, because it imports TensorFlow, which takes seconds.
    from ooodist.training import measurement

    code, measured = measurement.run(config, output)
    if measured is None:  # it failed, or this is not rank 0
        return code
    profile = measured.profile
    subject = Subject(measured.title, profile.costs, profile.model)
    limits = _as_trained(measured.limits, clusters)
    try:
        _plan(subject, clusters or [Cluster(profile.network)], limits, output)
    except UserError as error:
        return _wrong(error)
    return 0


def _plan(subject: Subject, clusters: Sequence[Cluster], limits: Limits, output: Path) -> None:
    # Later, because it imports Matplotlib, for which mistakes need not wait.
    from ooodist.report.planned import plan_clusters

    logger.setLevel(logging.INFO)
    print(plan_clusters(subject, clusters, limits, output), flush=True)


def _wrong(error: UserError) -> int:
    print(f"ooodist: error: {error}", file=sys.stderr)
    return USER_ERROR_CODE


def _plan_costs(options: argparse.Namespace) -> int:
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
    clusters = _described_clusters(options, "auto")
    if not clusters:
        raise UserError(
            f"--costs {options.costs} says nothing of the network; describe it, as "
            "--workers 64 --bandwidth 10Gbit --latency 30us"
        )
    planning = _planning(options, PlanningConfig())
    limits = Limits(
        memory_bytes=planning.memory_bytes, max_steps_per_launch=planning.max_steps_per_launch
    )
    subject = Subject(options.costs.stem, read_costs(options.costs))
    output = Path(options.output or DEFAULT_OUTPUT)
    _plan(subject, clusters, _as_trained(limits, clusters), output)
    return 0


def _as_trained(limits: Limits, described: Sequence[Cluster]) -> Limits:
    """The limits, with the credits that a training on the described clusters could carry out."""
    if not described:
        return limits
    return replace(limits, credits=planned_credits(described[0].network.engine))


def _config(options: argparse.Namespace) -> Config:
    config = job_file.load(options.config, options.overrides)
    config = replace(config, planning=_planning(options, config.planning))
    if options.steps_per_launch is not None:
        config = replace(config, steps_per_launch=None)  # the option takes the place of the key
    if options.engine is not None:
        config = replace(config, engine=options.engine)
    return config


def _config_to_measure(config: Config, *, is_described: bool) -> Config:
    """The job, on the engine that it is measured on.

    Raises UserError if this process was started in another way than that needs.
    """
    if not is_described:
        name, reason = detect.choose(config.engine, os.environ, config.workers)
        if name == "local":
            raise UserError(
                f"there is nothing to plan for one worker (engine local: {reason}); start the "
                "workers with a launcher, as python launch/local.py -np 2 --engine horovod -- "
                "python -m ooodist.plan …, or describe a cluster, as --workers 64 "
                "--bandwidth 10Gbit --latency 30us"
            )
        return config
    name, reason = detect.detect(os.environ)
    if name != "local":
        raise UserError(
            f"--workers describes a cluster, but this process was started for engine {name} "
            f"({reason}); leave --workers and --bandwidth out to plan for the workers that were "
            "started, or start it with plain python"
        )
    return replace(config, engine="local", workers=None)


def _described_clusters(options: argparse.Namespace, engine: str) -> list[Cluster]:
    """What --workers and the other options describe; empty without them."""
    given = {
        "--workers": options.workers,
        "--bandwidth": options.bandwidth,
        "--latency": options.latency,
        "--servers": options.servers,
    }
    if not any(given.values()):
        return []
    for name in ("--workers", "--bandwidth"):
        if not given[name]:
            other = next(option for option, value in given.items() if value)
            raise UserError(
                f"{other} describes a cluster, which needs {name} as well; give "
                "--workers 64 --bandwidth 10Gbit --latency 30us, or none of them"
            )
    chosen = options.engine or (engine if engine in DESCRIBED_ENGINES else DEFAULT_ENGINE)
    latency = options.latency or DEFAULT_LATENCY
    latency_seconds = parse_latency(latency, "--latency")
    servers = None
    if options.servers is not None:
        servers = _whole_number(options.servers, "--servers", least=1)
    clusters = []
    for bandwidth in options.bandwidth:
        bits_per_second = parse_bandwidth(bandwidth, "--bandwidth")
        for workers in options.workers:
            network = describe_network(
                chosen,
                _whole_number(workers, "--workers", least=2),
                bits_per_second,
                latency_seconds,
                servers=servers,
            )
            clusters.append(Cluster(network, bandwidth, latency, servers))
    return clusters


def _planning(options: argparse.Namespace, planning: PlanningConfig) -> PlanningConfig:
    """The settings with what the options say."""
    if options.profile:
        planning = replace(planning, profile_anew=True)
    if options.memory is not None:
        planning = replace(planning, memory_bytes=_parse_memory(options.memory))
    if options.steps_per_launch is not None:
        most = _whole_number(options.steps_per_launch, "--steps-per-launch", least=1)
        planning = replace(planning, max_steps_per_launch=most)
    return planning


def _parse_memory(text: str) -> int:
    found = _MEMORY.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise UserError(
            f"--memory is {text}; it must be a number and one of {', '.join(_POWER_OF_TWO)}, as "
            "12GiB"
        )
    return int(float(found[1]) * 2 ** _POWER_OF_TWO[found[2]])


def _whole_number(text: str, name: str, *, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise UserError(f"{name} is {text}; it must be a whole number of at least {least}")
    return int(text)


def read_costs(file: Path) -> StepCosts:
    """The costs of a YAML file. Raises UserError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--costs {file} cannot be read: {error}") from error
    value = yaml_dataclass.parse(text, f"--costs {file}")
    try:
        costs: StepCosts = yaml_dataclass.read(StepCosts, value)
    except UserError as error:
        raise UserError(f"--costs {file}: {error}") from error
    return costs


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m ooodist.plan",
        description="Measure a job, plan its order and exchanges, predict and draw. No training.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", metavar="FILE", type=Path, help="YAML file of the job")
    add(
        "--set",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="override a key of the job, as batch=32; may be repeated",
    )
    add("--profile", action="store_true", help="measure anew, even if there is a profile that fits")
    add("--costs", metavar="FILE", type=Path, help="costs of a step, instead of measuring a job")
    add("--workers", metavar="N", nargs="+", help="describe a cluster of so many workers")
    add("--bandwidth", metavar="RATE", nargs="+", help="of each host's link, as 10Gbit")
    add("--latency", metavar="TIME", help=f"from host to host (default: {DEFAULT_LATENCY})")
    add(
        "--engine",
        choices=DESCRIBED_ENGINES,
        help="by default as the job says; else as the process was launched, or for a described "
        f"cluster {DEFAULT_ENGINE}",
    )
    add(
        "--servers",
        metavar="S",
        help="BytePS: on so many hosts of their own (default: with the workers)",
    )
    add("--memory", metavar="SIZE", help="that a worker may use, as 12GiB (default: any)")
    add("--steps-per-launch", metavar="MOST", help="that may be traced into one function")
    add("--output", metavar="DIR", help=f"for the files (default: the job's output/{FOLDER_NAME})")
    return parser.parse_args(arguments)


class _Parser(argparse.ArgumentParser):
    """Its errors are like all others: one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; python -m ooodist.plan --help shows what there is")


if __name__ == "__main__":
    logging.basicConfig(format="ooodist: %(message)s")
    # TensorFlow's notes on its build; warnings and errors stay.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    sys.exit(main(sys.argv[1:]))
