"""Runs on each host of a job: says what is there, and keeps it in order until the job has ended.

The launcher starts ``python -m ooodist.launcher.ssh.keeper`` on every host, sends a
:class:`Request` as one line of JSON, and gets :class:`Facts` as one line. Until its standard input
is closed, the keeper keeps ports reserved (as ``Host.reserve_port`` does). Each more line is the
beginning of paths of files. When the launcher is gone and all runners have ended, these files and
the keeper's folder are removed.
"""

import fcntl
import json
import os
import platform
import shutil
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import ooodist
from ooodist.engines.kinds import launched_as
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import Host, interface_with, ipv4_address
from ooodist.launcher.ssh.runner import ALIVE
from ooodist.util.digest import hex_digest
from ooodist.util.packages import version


@dataclass(frozen=True)
class Request:
    """What the launcher wants to know.

    Attributes:
        address: where the others will reach the host.
        engine: whose packages to look at.
        program: the first word of the command, to be found on ``search_path``.
        files: paths of files that the command names.
        ports: how many to reserve.
    """

    address: str
    engine: str
    program: str
    search_path: str
    files: list[str]
    ports: int


@dataclass(frozen=True)
class Facts:
    """What is there on a host.

    Attributes:
        versions: of Python and each package; "" for one that is missing.
        program: the path of the command's program; "" if there is none.
        files: for each path, the SHA-256 of the file; "" if there is none.
        interface: the network interface with the address; "" if there is none.
        own_name: the host's name for itself.
        own_address: to what the host resolves its own name; "" if it does not.
        ports: that are reserved.
        folder: a new temporary folder.
    """

    versions: dict[str, str]
    program: str
    files: dict[str, str]
    interface: str
    own_name: str
    own_address: str
    ports: list[int]
    folder: str


def facts(request: Request, ports: list[int], folder: Path) -> Facts:
    """What is there on this host; ``ports`` and ``folder`` are the keeper's."""
    own_name, own_address = socket.gethostname(), ""
    with suppress(OSError):
        own_address = ipv4_address(own_name)
    return Facts(
        versions=_versions(request.engine),
        program=shutil.which(request.program, path=request.search_path) or "",
        files={
            path: _digest([Path(path)]) if Path(path).is_file() else "" for path in request.files
        },
        interface=interface_with(request.address),
        own_name=own_name,
        own_address=own_address,
        ports=ports,
        folder=str(folder),
    )


def _versions(engine: str) -> dict[str, str]:
    sources = sorted(Path(ooodist.__file__).parent.rglob("*.py"))
    own = f"{ooodist.__version__} (sources {_digest(sources)[:12]})"
    found = {"Python": platform.python_version(), "ooodist": own}
    found |= {"TensorFlow": version("tensorflow"), "Keras": version("keras")}
    package = launched_as(engine).package
    return found | ({} if package is None else {package: version(package)})


def _digest(files: list[Path]) -> str:
    return hex_digest(file.read_bytes() for file in files)


def main() -> None:
    """Answers one request, and cleans up when standard input ends."""
    request = Request(**json.loads(sys.stdin.readline()))
    sockets: list[socket.socket] = []
    with suppress(OSError):  # not an address of this host: the answer has no interface
        sockets = [Host(address=request.address).bound_socket() for _ in range(request.ports)]
    ports = [int(reserved.getsockname()[1]) for reserved in sockets]
    with Cleaner() as cleaner:
        folder = cleaner.new_folder()
        alive = os.open(folder / ALIVE, os.O_CREAT | os.O_RDWR)
        fcntl.flock(alive, fcntl.LOCK_EX)
        print(json.dumps(asdict(facts(request, ports, folder))), flush=True)
        for line in sys.stdin:
            cleaner.add_files(line.rstrip("\n"))
        os.close(alive)
        # Each runner holds the lock while what it has started may still write.
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)


if __name__ == "__main__":
    main()
