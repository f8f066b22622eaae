"""What the options of ``python -m ooodist.plan`` describe: clusters, links and hosts."""

from __future__ import annotations

import argparse

from ooodist.errors import UserError
from ooodist.plan.options import DEFAULT_LATENCY, joined
from ooodist.planner.cluster import describe_network, parse_bandwidth, parse_latency
from ooodist.planner.pipeline.layer_costs import Link
from ooodist.planner.placement.hosts import Hosts
from ooodist.report.data_parallel.plan_table import Cluster

_CLUSTER = ("workers", "hosts", "bandwidth", "devices", "inside", "latency", "servers")
_HOSTS = "--hosts 2 --devices 8 --inside 1600Gbit --bandwidth 100Gbit"


def described_clusters(options: argparse.Namespace, engine: str) -> list[Cluster]:
    """The clusters that ``--workers``, ``--hosts`` etc. describe; empty without such options.

    Args:
        options: the command line.
        engine: the name of the clusters' engine.

    Raises:
        UserError: the options say too little, or contradict each other.
    """
    given = [name for name in _CLUSTER if getattr(options, name)]
    if not given:
        return []
    if options.workers and options.hosts:
        raise UserError("--workers and --hosts both say how large the cluster is; give one of them")
    size = "hosts" if options.hosts or options.devices else "workers"
    for name in (size, "bandwidth"):
        if name not in given:
            raise UserError(
                f"--{given[0]} describes a cluster, which needs --{name} as well; give "
                "--workers 64 --bandwidth 10Gbit --latency 30us, or none of them"
            )
    devices = options.devices or 1
    if (devices > 1) != bool(options.inside):
        raise UserError(
            f"--devices is {devices} and --inside {options.inside or 'not given'}; hosts with "
            "several devices have links inside, as --devices 8 --inside 1600Gbit"
        )
    numbers = options.workers or options.hosts
    if devices * min(numbers) < 2:
        raise UserError(f"--{size} is 1; it must be a whole number of at least 2")
    latency = options.latency or DEFAULT_LATENCY
    return [
        Cluster(
            describe_network(
                engine,
                devices * number,
                parse_bandwidth(bandwidth, "--bandwidth"),
                parse_latency(latency, "--latency"),
                servers=options.servers,
                devices=devices,
                inside=options.inside and parse_bandwidth(options.inside, "--inside"),
            ),
            bandwidth,
            latency,
            options.servers,
            devices,
        )
        for bandwidth in options.bandwidth
        for number in numbers
    ]


def described_link(options: argparse.Namespace) -> Link | None:
    """The link between ranks of a pipeline that ``--bandwidth`` describes, if it is given.

    Raises UserError if the options say too little, or too much.
    """
    if options.bandwidth is None:
        if options.latency is not None:
            raise UserError(
                "--latency describes links, which need --bandwidth as well; give --bandwidth "
                "10Gbit --latency 30us, or none of them"
            )
        return None
    if len(options.bandwidth) > 1:
        raise UserError(
            f"--bandwidth is {joined(options.bandwidth)}, but a pipeline is planned for links of "
            "one kind; give one"
        )
    return Link(
        parse_latency(options.latency or DEFAULT_LATENCY, "--latency"),
        8.0 / parse_bandwidth(options.bandwidth[0], "--bandwidth"),
    )


def described_hosts(options: argparse.Namespace, between: Link) -> Hosts | None:
    """The hosts that ``--hosts``, ``--devices`` and ``--inside`` describe, if they do.

    Args:
        options: the command line.
        between: the link of each host, which ``--bandwidth`` describes.

    Raises:
        UserError: the options say too little, or contradict each other.
    """
    if not options.hosts:
        if options.inside:
            raise UserError(
                f"--inside is {options.inside}, the rate of links inside of hosts, which need "
                f"--hosts as well; give {_HOSTS}, or none of them"
            )
        return None
    for name in ("devices", "inside", "bandwidth"):
        if not getattr(options, name):
            raise UserError(f"--hosts needs --{name} as well, for pipelines; give {_HOSTS}")
    if len(options.hosts) > 1:
        raise UserError(
            f"--hosts is {joined(options.hosts)}, but pipelines are planned for hosts of one "
            "number; give one"
        )
    inside = Link(seconds_per_byte=8.0 / parse_bandwidth(options.inside, "--inside"))
    if inside.seconds_per_byte > between.seconds_per_byte:
        raise UserError(
            f"--inside is {options.inside}, which is slower than --bandwidth "
            f"{options.bandwidth[0]}; links inside of a host are at least as fast as those "
            "between hosts"
        )
    return Hosts(options.hosts[0], options.devices, inside, between)
