"""A host of an emulated network, which is a network namespace of this machine."""

import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from expr.lab import removal
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import Host

CLONE_NEWNET = 0x40000000  # <sched.h>


@dataclass(frozen=True)
class LabHost(Host):
    """A host with an address, a host name and interfaces of its own.

    Attributes:
        namespace: its network namespace, as ``ip netns`` names it.
    """

    namespace: str = ""

    def wrap(self, command: list[str]) -> list[str]:
        """A command that runs ``command`` on this host, as the same process."""
        # `ip netns exec` mounts /etc/netns/NAMESPACE/hosts over /etc/hosts.
        named = ["sh", "-c", 'hostname "$0" && exec "$@"', self.name, *super().wrap(command)]
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", *named]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Makes sockets that the calling thread opens in this block belong to the host."""
        with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{self.namespace}") as other:
            _enter(other.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    def reserve_port(self, resources: ExitStack) -> int:
        """Reserves a free port of the host, and the same one on this machine's own network.

        So no other job of the machine has it, which matters for what is named after it: the shared
        memory of BytePS.
        """
        machine = Host()
        while True:
            reserved: socket.socket = resources.enter_context(machine.bound_socket())
            port = int(reserved.getsockname()[1])
            with suppress(OSError):  # an outgoing connection there has the number: try another
                resources.enter_context(self.bound_socket(port))
                return port

    def remove_after(self, cleaner: Cleaner) -> None:
        """Has the namespace removed after the job, with its processes and interfaces."""
        cleaner.add_command([sys.executable, "-I", "-S", removal.__file__, self.namespace])


def _enter(namespace: int) -> None:
    # os.setns is new in Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot enter the network namespace: {os.strerror(error)}")
