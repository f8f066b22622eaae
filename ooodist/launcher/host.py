"""A host on which processes of a job run: this machine, or one of an emulated network."""

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CLONE_NEWNET = 0x40000000  # <sched.h>


@dataclass(frozen=True)
class Host:
    """A host as its processes see it; by default, this machine with its loopback network.

    Attributes:
        address: the address at which other hosts reach it.
        interface: the network interface with that address.
        cores: cores that its processes are bound to; empty for all.
        name: its own host name; empty for the machine's.
        namespace: its network namespace; empty for the machine's own network.
    """

    address: str = "127.0.0.1"
    interface: str = "lo"
    cores: tuple[int, ...] = ()
    name: str = ""
    namespace: str = ""

    def wrap(self, command: list[str]) -> list[str]:
        """Returns a command that runs ``command`` on this host, as the same process."""
        if self.cores:
            command = ["taskset", "--cpu-list", ",".join(map(str, self.cores)), *command]
        if self.namespace:
            # `ip netns exec` mounts /etc/netns/NAMESPACE/hosts over /etc/hosts.
            named = ["sh", "-c", 'hostname "$0" && exec "$@"', self.name, *command]
            command = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", *named]
        return command

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Makes sockets that the calling thread opens in this block belong to the host."""
        if not self.namespace:
            yield
            return
        with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{self.namespace}") as other:
            _enter(other.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    def bound_socket(self, port: int = 0) -> socket.socket:
        """Opens a TCP socket bound to the host's address and to ``port``, or to a free one if 0."""
        with self.inside():
            bound = socket.socket()
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.address, port))
        except OSError:
            bound.close()
            raise
        return bound


def _enter(namespace: int) -> None:
    # os.setns is new in Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot enter the network namespace: {os.strerror(error)}")
