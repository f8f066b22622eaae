"""A host on which processes of a job run: this machine, unless a subclass says otherwise."""

import errno
import fcntl
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner

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
        python: the path of Python there.
    """

    address: str = "127.0.0.1"
    interface: str = "lo"
    cores: tuple[int, ...] = ()
    name: str = ""
    python: str = sys.executable

    @property
    def place(self) -> str:
        """Its name in messages, if they must tell it from the launcher's machine."""
        return ""

    @property
    def known_as(self) -> str:
        """A name or address by which other hosts find it."""
        return self.address

    @property
    def is_here(self) -> bool:
        """Whether this process starts what the host needs once."""
        return True

    def wrap(self, command: list[str]) -> list[str]:
        """A command that runs ``command`` on this host, as the same process."""
        if self.cores:
            return ["taskset", "--cpu-list", ",".join(map(str, self.cores)), *command]
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

    def inside(self) -> AbstractContextManager[None]:
        """Makes sockets that the calling thread opens in this block belong to the host."""
        return nullcontext()

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
        """
        return int(resources.enter_context(self.bound_socket()).getsockname()[1])


def each_once(hosts: Iterable[Host]) -> list[Host]:
    """Each host once, as others know it."""
    return list({host.known_as: host for host in hosts}.values())


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
