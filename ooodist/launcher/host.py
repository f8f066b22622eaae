"""A host on which processes of a job run: this machine, or one of an emulated network."""

import ctypes
import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner

CLONE_NEWNET = 0x40000000  # <sched.h>
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_ADDRESS = slice(20, 24)  # in a struct ifreq, behind the name, the family and the port


@dataclass(frozen=True)
class Host:
    """A host as its processes see it; by default, this machine with its loopback network.

    Attributes:
        address: the address at which other hosts reach it.
        interface: the network interface with that address.
        cores: cores that its processes are bound to; empty for all.
        name: its own host name; empty for the machine's.
        namespace: its network namespace; empty for the machine's own network.
        python: the path of Python there.
    """

    address: str = "127.0.0.1"
    interface: str = "lo"
    cores: tuple[int, ...] = ()
    name: str = ""
    namespace: str = ""
    python: str = sys.executable

    @property
    def place(self) -> str:
        """Its name in messages, if they must tell it from the launcher's machine."""
        return ""

    def wrap(self, command: list[str]) -> list[str]:
        """A command that runs ``command`` on this host, as the same process."""
        if self.cores:
            command = ["taskset", "--cpu-list", ",".join(map(str, self.cores)), *command]
        if self.namespace:
            # `ip netns exec` mounts /etc/netns/NAMESPACE/hosts over /etc/hosts.
            named = ["sh", "-c", 'hostname "$0" && exec "$@"', self.name, *command]
            command = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", *named]
        return command

    def orders(self, command: list[str], environment: Mapping[str, str]) -> bytes | None:
        """What the wrapped command is to read from its standard input; None: nothing."""
        return None

    def new_folder(self, cleaner: Cleaner) -> Path:
        """A new temporary folder of the host, which is removed after the job."""
        return cleaner.new_folder()

    def add_files(self, cleaner: Cleaner, prefix: str) -> None:
        """Has files of the host removed after the job: whose absolute path begins like this."""
        cleaner.add_files(prefix)

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
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRNOTAVAIL and self.address == Host.address:
                raise UserError(
                    f"this machine has no address {self.address}, over which the processes of a "
                    f"job meet; run: ip link set lo up; ip addr add {self.address}/8 dev lo"
                ) from error
            raise
        return bound

    def reserve_port(self, resources: ExitStack) -> int:
        """Reserves a free port of the host for as long as the job lasts.

        The socket stays bound but does not listen, and allows reuse of its address. Linux then lets
        a server that allows the same (those of TensorFlow and BytePS do) listen there, but never
        hands the port out as a free one. A port that was released before the server starts, seconds
        later, could be taken by another launcher.

        On a host of an emulated network the port is reserved on this machine's own network as well.
        So no other job of the machine has it, which matters for what is named after it: the shared
        memory of BytePS.
        """
        machine = Host()
        while True:
            reserved = resources.enter_context(machine.bound_socket())
            port = int(reserved.getsockname()[1])
            if self.address == machine.address:
                return port
            with suppress(OSError):  # an outgoing connection there has the number: try another
                resources.enter_context(self.bound_socket(port))
                return port


def _enter(namespace: int) -> None:
    # os.setns is new in Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot enter the network namespace: {os.strerror(error)}")


def each_once(hosts: Iterable[Host]) -> list[Host]:
    """One host of each address."""
    return list({host.address: host for host in hosts}.values())


def ipv4_address(name: str) -> str:
    """The IPv4 address of a host. Raises OSError if its name has none."""
    try:
        return socket.gethostbyname(name)
    except UnicodeError as error:  # some names cannot even be asked for
        reason = "between its dots a name has 1 to 63 letters"
        raise OSError(errno.EINVAL, reason) from error


def interface_with(address: str) -> str:
    """The network interface of this machine with this IPv4 address; "" if none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an IPv4 address
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, name.encode().ljust(32, b"\0"))
                if socket.inet_ntoa(answer[_ADDRESS]) == address:
                    return name
    return ""
