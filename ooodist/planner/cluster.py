"""A network that one does not have: its costs from workers, bandwidth and latency.

What travels, for each byte of gradient (w workers, each host's link in both directions at once):

======================================  ==========================================  ==============
exchange                                each host sends and receives                one-way trips
======================================  ==========================================  ==============
ring (horovod, collective)              2 (w - 1) / w                               2 (w - 1)
byteps, a server on each worker's host  2 (w - 1) / w: pushes and answers to pulls  4
byteps, s servers on hosts of their     worker: 1 pushed and 1 pulled;              4
own                                     server: w / s of each
======================================  ==========================================  ==============

With several devices in a host, the gradients of a host are added up over the links inside it, each
device takes an equal part of the exchange between hosts, and the sums are gathered inside: w counts
hosts then, and each byte crosses a link inside 2 (d - 1) / d times besides (d devices).

The trips are hidden while other exchanges are in flight, but not with Horovod, which runs one after
the other: there the trips round the ring occupy the lane, and what is hidden is how the workers
agree on what is ready (asked and told: two trips). Measured on hosts that are far apart, in
expr/engines; gloo needs twice as many trips, as each waits for its receiver to be ready.

With servers of their own, pushing and pulling go opposite ways and so are two lanes; on the
workers' hosts they share one.

Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 2009 (ring); Jiang et al., "A unified architecture for accelerating distributed
DNN training in heterogeneous GPU/CPU clusters", OSDI 2020 (BytePS; several devices in a host).
"""

from __future__ import annotations

from ooodist.errors import UserError
from ooodist.planner.costs import Network
from ooodist.util import quantity

ENGINES = ("local", "collective", "horovod", "byteps")
PUSH_AND_PULL_TRIPS = 4  # gradient, receipt, request of the sum, sum
AGREEMENT_TRIPS = 2  # of Horovod's workers and their coordinator


def describe_network(
    engine: str,
    workers: int,
    bandwidth: float,
    latency: float,
    *,
    servers: int | None = None,
    devices: int = 1,
    inside: float | None = None,
    measured: Network | None = None,
) -> Network:
    """What an exchange costs on a described network.

    Args:
        engine: horovod, collective, byteps, or local (one worker).
        workers: of all hosts.
        bandwidth: of each host's link, in each direction, in bits a second.
        latency: seconds that a message travels from one host to another.
        servers: byteps: hosts that are servers only; None: a server on each worker's host.
        devices: workers on each host.
        inside: bandwidth of a device's link to those of its host, in each direction, in bits a
            second; for more than one device.
        measured: a real network with this engine, for what does not come from the wire: what an
            exchange costs besides its bytes, and the CPU (per byte on the wire).

    Raises:
        UserError: these do not go together, or are out of range.
    """
    _check(engine, workers, bandwidth, latency, servers, measured)
    _check_devices(workers, devices, inside)
    if workers == 1:
        return Network(engine, 1, by_urgency=engine == "byteps")
    hosts = workers // devices
    seconds_per_byte = 8.0 / bandwidth  # on the wire
    pull_seconds_per_byte = 0.0
    if servers is None:
        trips = PUSH_AND_PULL_TRIPS if engine == "byteps" and hosts > 1 else 2 * (hosts - 1)
        seconds_per_byte *= _share_sent(hosts)
    else:
        trips = PUSH_AND_PULL_TRIPS
        seconds_per_byte *= max(1.0, hosts / servers)
        pull_seconds_per_byte = seconds_per_byte
    if inside is not None:
        seconds_per_byte += _share_sent(devices) * 8.0 / inside
    hidden, fixed = trips * latency, 0.0
    if engine == "horovod" and hosts > 1:
        hidden, fixed = AGREEMENT_TRIPS * latency, hidden
    own = measured or Network(engine, workers)
    traffic = _share_sent(hosts) / _share_sent(own.workers) if own.workers > 1 else 1.0
    return Network(
        engine,
        workers,
        latency=hidden + own.latency,
        fixed=fixed + own.fixed,
        seconds_per_byte=seconds_per_byte,
        pull_seconds_per_byte=pull_seconds_per_byte,
        cpu_seconds_per_byte=own.cpu_seconds_per_byte * traffic,
        cpu_seconds_per_exchange=own.cpu_seconds_per_exchange,
        cpu_seconds_per_copied_byte=own.cpu_seconds_per_copied_byte,
        by_urgency=engine == "byteps",
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
    """Bits a second from text such as ``10Gbit``. Raises UserError, in which ``name`` names it."""
    example = "10Gbit or 250Mbit (bits a second)"
    return quantity.read(text, name, quantity.BITS_PER_SECOND, example, positive=True)


def parse_latency(text: str, name: str = "latency") -> float:
    """Seconds from text such as ``30us``. Raises UserError, in which ``name`` names it."""
    return quantity.read(text, name, quantity.SECONDS, "30us or 1ms")


def _share_sent(workers: int) -> float:
    """Bytes that each host sends (and receives) for each byte of gradient."""
    return 2 * (workers - 1) / workers


def _check(
    engine: str,
    workers: int,
    bandwidth: float,
    latency: float,
    servers: int | None,
    measured: Network | None,
) -> None:
    if engine not in ENGINES:
        raise UserError(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
    if workers < 1 or (engine == "local" and workers > 1):
        raise UserError(
            f"workers is {workers} with engine {engine}; it must be at least 1, and 1 with local"
        )
    if not bandwidth > 0:
        raise UserError(f"bandwidth is {bandwidth:g} bits a second; it must be more than 0")
    if not latency >= 0:
        raise UserError(f"latency is {latency:g} s; it must be at least 0")
    if servers is not None and engine != "byteps":
        raise UserError(f"servers is {servers}, but engine {engine} has none; leave servers out")
    if servers is not None and servers < 1:
        raise UserError(
            f"servers is {servers}; give at least 1, or leave servers out to have one on each "
            "worker's host"
        )
    if measured is not None and measured.engine != engine:
        raise UserError(
            f"the network was measured with engine {measured.engine}, but the described one has "
            f"{engine}; measure it with {engine}"
        )
