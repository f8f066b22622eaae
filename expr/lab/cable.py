"""A cable of the emulated network with a delay: packets that a host sends leave it later.

Linux's own way to delay packets, netem, is missing in many kernels, such as those of small virtual
machines. So a delayed cable is two network interfaces (TAP) whose packets are passed to a program,
and this file, run as a script, is that program: it carries each packet from one to the other, those
from the host after the delay, those to the host at once. ``tc`` limits the rate at both ends, as it
does without a delay.

Carrying takes CPU time, some 25 us per packet of 9000 bytes, on whichever core is free, and adds
some 0.25 ms of delay, more if all cores are busy.

    cable.py HOST_DESCRIPTOR SWITCH_DESCRIPTOR SECONDS
"""

import errno
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA  # <linux/if_tun.h>, as all below
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
LARGEST_PACKET = 1 << 16
# Packets that a cable loses: its other end is down, or has no room.
_LOST = (errno.EIO, errno.ENOBUFS, errno.ENOMEM)
PRIORITY = -20  # it must not wait for a host's computation


def new_end(interface: str) -> int:
    """Makes an interface of this name in the calling thread's network; returns its descriptor.

    The interface is gone when nobody has the descriptor open any more. Raises OSError.
    """
    end = os.open("/dev/net/tun", os.O_RDWR)
    try:
        request = struct.pack("16sH22x", interface.encode(), IFF_TAP | IFF_NO_PI)
        fcntl.ioctl(end, TUNSETIFF, request)
    except BaseException:
        os.close(end)
        raise
    return end


def carry(host: int, switch: int, delay: float) -> None:
    """Carries packets between two ends forever, those from the host after ``delay`` seconds."""
    on_the_way: deque[tuple[float, bytes]] = deque()  # (time due, packet)
    while True:
        now = time.monotonic()
        while on_the_way and on_the_way[0][0] <= now:
            _send(switch, on_the_way.popleft()[1])
        timeout = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        ready, _, _ = select.select([host, switch], [], [], timeout)
        if host in ready:
            packet = os.read(host, LARGEST_PACKET)
            on_the_way.append((time.monotonic() + delay, packet))
        if switch in ready:
            _send(host, os.read(switch, LARGEST_PACKET))


def _send(end: int, packet: bytes) -> None:
    try:
        os.write(end, packet)
    except OSError as error:
        if error.errno not in _LOST:
            raise


if __name__ == "__main__":
    os.nice(PRIORITY)
    carry(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
