"""Computes the costs of a network that one does not have from workers, bandwidth and latency.

Bytes sent for each byte of gradient (w workers, each host's link in both directions at once):

======================================  ==========================================  ==============
exchange                                each host sends and receives                one-way trips
======================================  ==========================================  ==============
ring (horovod, collective)              2 (w - 1) / w                               2 (w - 1)
byteps, a server on each worker's host  2 (w - 1) / w: pushes and answers to pulls  4
byteps, s servers on hosts of their     worker: 1 pushed and 1 pulled;              4
own                                     server: w / s of each
======================================  ==========================================  ==============

With several devices in a host, the gradients of a host are summed over the links inside it, each
device takes an equal part of the exchange between hosts, and the sums are gathered inside: then w
counts hosts, and each byte also crosses a link inside 2 (d - 1) / d times (d devices).

The trips are hidden while other exchanges are in flight, except with Horovod, which runs one at a
time: there the trips round the ring occupy the lane, and only the workers' agreement on what is
ready (a request and an answer: two trips) is hidden. Measured on hosts that are far apart, in
expr/engines; gloo needs twice as many trips, as each waits for its receiver to be ready.

With servers on hosts of their own, pushing and pulling go in opposite directions and so are two
lanes; on the workers' hosts they share one.

Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 2009 (ring); Jiang et al., "A unified architecture for accelerating distributed
DNN training in heterogeneous GPU/CPU clusters", OSDI 2020 (BytePS; several devices in a host).
"""

from __future__ import annotations

from ooodist.engines.kinds import Kind, find
from ooodist.errors import UserError
from ooodist.planner.costs import Network
from ooodist.util import quantity


def describe_network(
    engine: str,
    workers: int,
    bandwidth: float,
    latency: float,
    *,
    servers: int | None = None,
    devices: int = 1,
    inside: float | None = None,
) -> Network:
    """The costs of exchanges on a described network.

    Args:
        engine: horovod, collective, byteps, or local (one worker).
        workers: total over all hosts.
        bandwidth: bits per second of each host's link, in each direction.
        latency: seconds that a message travels from one host to another.
        servers: for byteps, the number of hosts that are only servers; None: a server on each
            worker's host.
        devices: workers per host.
        inside: bits per second of a device's link inside its host, in each direction; for more
            than one device.

    Raises:
        UserError: the arguments contradict each other, or are out of range.
    """
    kind = find(engine)
    _check(kind, workers, bandwidth, latency, servers)
    _check_devices(workers, devices, inside)
    if workers == 1:
        return Network(engine, 1, by_urgency=kind.sends_by_urgency)
    hosts = workers // devices
    seconds_per_byte = 8.0 / bandwidth  # on the wire
    pull_seconds_per_byte = 0.0
    trips = kind.trips(hosts, servers)
    if servers is None:
        seconds_per_byte *= _share_sent(hosts)
    else:
        seconds_per_byte *= max(1.0, hosts / servers)
        pull_seconds_per_byte = seconds_per_byte
    if inside is not None:
        seconds_per_byte += _share_sent(devices) * 8.0 / inside
    hidden, fixed = trips * latency, 0.0
    if kind.agreement_trips is not None and hosts > 1:
        hidden, fixed = kind.agreement_trips * latency, hidden
    return Network(
        engine,
        workers,
        latency=hidden,
        fixed=fixed,
        seconds_per_byte=seconds_per_byte,
        pull_seconds_per_byte=pull_seconds_per_byte,
        by_urgency=kind.sends_by_urgency,
    )


def _check_devices(workers: int, devices: int, inside: float | None) -> None:
    if devices < 1 or workers % devices:
        raise UserError(
            f"devices is {devices} with {workers} workers; it must divide them, as each host has "
            "so many"
        )
    if (devices > 1) != (inside is not None):
        raise UserError(
            f"inside is {'not given' if inside is None else f'{inside:g} bits a second'} with "
            f"{devices} device{'s' if devices > 1 else ''} a host; give it for more than one"
        )
    if inside is not None and not inside > 0:
        raise UserError(f"inside is {inside:g} bits a second; it must be more than 0")


def parse_bandwidth(text: str, name: str = "bandwidth") -> float:
    """Parses bits per second such as ``10Gbit``. Raises UserError, which calls it ``name``."""
    example = "10Gbit or 250Mbit (bits a second)"
    return quantity.read(text, name, quantity.BITS_PER_SECOND, example, positive=True)


def parse_latency(text: str, name: str = "latency") -> float:
    """Parses seconds such as ``30us``. Raises UserError, which calls it ``name``."""
    return quantity.read(text, name, quantity.SECONDS, "30us or 1ms")


def _share_sent(workers: int) -> float:
    """The bytes that each host sends (and receives) for each byte of gradient."""
    return 2 * (workers - 1) / workers


def _check(kind: Kind, workers: int, bandwidth: float, latency: float, servers: int | None) -> None:
    engine = kind.name
    if kind.runs_pipelines:
        raise UserError(f"engine is {engine}, which sums no gradients; take another one")
    if workers < 1 or (kind.is_alone and workers > 1):
        raise UserError(
            f"workers is {workers} with engine {engine}; it must be at least 1, and 1 with local"
        )
    if not bandwidth > 0:
        raise UserError(f"bandwidth is {bandwidth:g} bits a second; it must be more than 0")
    if not latency >= 0:
        raise UserError(f"latency is {latency:g} s; it must be at least 0")
    if servers is not None and not kind.has_servers:
        raise UserError(f"servers is {servers}, but engine {engine} has none; leave servers out")
    if servers is not None and servers < 1:
        raise UserError(
            f"servers is {servers}; give at least 1, or leave servers out to have one on each "
            "worker's host"
        )
