"""The hosts that the options of ``python -m ooodist.plan`` describe for pipelines."""

from __future__ import annotations

import argparse

from ooodist.errors import UserError
from ooodist.plan.options import whole_number
from ooodist.planner.cluster import parse_bandwidth
from ooodist.planner.pipeline.layer_costs import Link
from ooodist.planner.placement.hosts import Hosts

EXAMPLE = "--hosts 2 --devices 8 --inside 1600Gbit --bandwidth 100Gbit"


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
                f"--hosts as well; give {EXAMPLE}, or none of them"
            )
        return None
    for name, value in (
        ("--devices", options.devices),
        ("--inside", options.inside),
        ("--bandwidth", options.bandwidth),
    ):
        if not value:
            raise UserError(f"--hosts needs {name} as well, for pipelines; give {EXAMPLE}")
    if len(options.hosts) > 1:
        raise UserError(
            f"--hosts is {' '.join(options.hosts)}, but pipelines are planned for hosts of one "
            "number; give one"
        )
    inside = Link(seconds_per_byte=8.0 / parse_bandwidth(options.inside, "--inside"))
    if inside.seconds_per_byte > between.seconds_per_byte:
        raise UserError(
            f"--inside is {options.inside}, which is slower than --bandwidth "
            f"{options.bandwidth[0]}; links inside of a host are at least as fast as those "
            "between hosts"
        )
    return Hosts(
        whole_number(options.hosts[0], "--hosts", least=1),
        whole_number(options.devices, "--devices", least=1),
        inside,
        between,
    )


def number_of_devices(options: argparse.Namespace) -> int:
    """The devices of all hosts; ``--devices`` alone is of one. Raises UserError."""
    hosts = whole_number(options.hosts[0], "--hosts", least=1) if options.hosts else 1
    return hosts * whole_number(options.devices, "--devices", least=1)
