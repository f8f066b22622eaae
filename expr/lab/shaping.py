"""Shapes the links of the emulated network: limits their rate with Linux's ``tc``.

The rate is kept by a token bucket (tbf) at each end of the link, for the direction in which that
end sends. A full bucket passes its content (the burst) at once, which no real link does, so it is
small: two milliseconds' worth, or one segment. With one millisecond's worth, busy cores, on which
timers are late, cost 5 % of 1 Gbit/s; with two, 0.5 %. The queue is so long that nothing is dropped
when one host sends to another. When several send to one, the switch in front of it drops packets,
as real ones do.

Measured on 2 busy cores, from 10 Mbit/s to 1 Gbit/s: one transfer gets 97 to 100 % of the rate,
transfers both ways at once 94 to 96 % each, four hosts that send to one 99 % together.

Packets have 9000 bytes, as in clusters: headers are 0.7 % of them, and 4.5 % of 1500 bytes. It
makes no difference to the CPU, which handles packets in larger segments. These are as large as
Linux allows, 64 KiB, as on fast networks, unless that is more than four milliseconds' worth, for
which others on the link would wait. Smaller ones cost too much: each wakes a thread of its
receiver, and a computation on the same core finds its caches cold. Segments must be smaller than
the burst, or they are cut into packets; a connection keeps its segment size when the rate changes.
"""

from ooodist.errors import UserError
from ooodist.util import quantity

RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
DELAYS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
SLOWEST = 10**6  # bit/s; below, a single packet takes a tenth of a second
FASTEST = 10**11
MTU = 9000  # bytes
SEGMENT_SECONDS = 4e-3
LARGEST_SEGMENT = 65536  # bytes; Linux's own limit
BURST_SECONDS = 2e-3
QUEUE_SECONDS = 0.1


def parse_rate(text: str) -> int:
    """Parses bits per second such as ``250Mbit`` or ``1.5Gbit``. Raises UserError."""
    rate = quantity.parse(text.lower(), RATES) or 0.0
    if not SLOWEST <= rate <= FASTEST:
        raise UserError(
            f"rate {text!r}: give a number with Kbit, Mbit or Gbit (a second), from 1Mbit to "
            "100Gbit, for example 250Mbit"
        )
    return round(rate)


def parse_delay(text: str) -> float:
    """Parses seconds such as ``30us``, ``1ms`` or ``0.1s``. Raises UserError."""
    delay = quantity.parse(text, DELAYS) or 0.0
    if not 0 < delay <= 10:
        raise UserError(
            f"delay {text!r}: give a number above 0 with us, ms or s, up to 10s, for example 1ms"
        )
    return delay


def segment_bytes(rate: int) -> int:
    """The largest segment that a host sends at once, at ``rate`` bits per second."""
    return min(max(int(rate / 8 * SEGMENT_SECONDS), MTU), LARGEST_SEGMENT)


def burst_bytes(rate: int) -> int:
    """The size of a full bucket in bytes, at ``rate`` bits per second."""
    # A tenth more than a segment, for the headers of its packets.
    return max(int(rate / 8 * BURST_SECONDS), int(segment_bytes(rate) * 1.1))


def token_bucket(rate: int) -> list[str]:
    """The arguments of ``tc qdisc`` that limit the rate to ``rate`` bits per second."""
    queue = f"{QUEUE_SECONDS * 1000:g}ms"
    return ["tbf", "rate", f"{rate}bit", "burst", f"{burst_bytes(rate)}b", "latency", queue]
