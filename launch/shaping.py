"""What a link of the emulated network lets through: its rate and its delay, by Linux's ``tc``.

The rate is kept by a token bucket (tbf) at each end of the link, for the direction in which that
end sends. A full bucket lets its content (the burst) pass at once, which no real link does, so it
is a millisecond's worth, or one segment. Its queue is so long that nothing is dropped where one
worker sends to another; where several send to one, the switch in front of that one drops, as real
switches do.
"""

import re

from ooodist.errors import UserError

UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SLOWEST = 10**6  # bit/s; below, one packet alone takes a tenth of a second
FASTEST = 10**11
BURST_SECONDS = 1e-3  # of the rate; a timer that comes late must not slow the link down
MTU = 9000
LARGEST_SEGMENT = 65536  # bytes that Linux hands to a network card at once, to be cut there
QUEUE_SECONDS = 0.1


def parse_rate(text: str) -> int:
    """Bits a second of a text such as ``250Mbit`` or ``1.5Gbit``. Raises UserError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text.lower(), re.ASCII)
    rate = round(float(match[1]) * UNITS[match[2]]) if match else 0
    if not SLOWEST <= rate <= FASTEST:
        raise UserError(
            f"rate {text!r}: give a number with Kbit, Mbit or Gbit (a second), from 1Mbit to "
            "100Gbit, for example 250Mbit"
        )
    return rate


def parse_delay(text: str) -> float:
    """Seconds of a text such as ``30us``, ``1ms`` or ``0.1s``. Raises UserError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text, re.ASCII)
    delay = float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]] if match else 0.0
    if not 0 < delay <= 10:
        raise UserError(
            f"delay {text!r}: give a number above 0 with us, ms or s, up to 10s, for example 1ms"
        )
    return delay


def segment_bytes(rate: int) -> int:
    """The largest segment that a host sends in one piece: what the link takes in a millisecond."""
    return min(max(int(rate / 8 * BURST_SECONDS), MTU), LARGEST_SEGMENT)


def token_bucket(rate: int) -> list[str]:
    """The arguments of ``tc qdisc`` that keep ``rate``, bits a second."""
    # A tenth more, for the headers that a segment gets when it is cut.
    burst = max(int(rate / 8 * BURST_SECONDS), int(segment_bytes(rate) * 1.1))
    queue = f"{QUEUE_SECONDS * 1000:g}ms"
    return ["tbf", "rate", f"{rate}bit", "burst", f"{burst}b", "latency", queue]
