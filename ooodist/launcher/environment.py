"""Makes the commands and environments of the processes of one job, for each engine.

``processes`` makes those of a launcher that starts them all. It reserves ports and folders, so it
takes an ExitStack that is closed at the end of the job. The other public functions are its parts,
for launchers that start one rank each (``slurm``).
"""

import json
import os
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooodist.engines.settings import HEARTBEAT, heartbeat_seconds, heartbeat_settings
from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import Host, each_once

MACHINE = Host()
# Makes Python write line by line, and in UTF-8 whatever the locale.
OUTPUT = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
LONGEST_SOCKET_FOLDER = 80  # a Unix socket's path has 107 bytes; BytePS truncates longer ones


@dataclass(frozen=True)
class Places:
    """The hosts of a job's workers and servers, and of the launcher's own service.

    BytePS's scheduler runs on the host of the first server.
    """

    workers: list[Host]
    servers: list[Host]
    launcher: Host = MACHINE


# What decides how ranks reach each other, and which GPUs they see.
_SETTINGS = (
    "NCCL_",
    "OFI_NCCL_",
    "FI_",
    "UCX_",
    "OMPI_MCA_",
    "HOROVOD_",
    "BYTEPS_",
    "CUDA_VISIBLE_",
)

# On hosts that are reached over ssh, engines wait longer for each other than the launcher for them:
# it ends the job first, with the host's name, after 1 to 1.2 times the limit (preflight.py).
_LONGER_OVER_SSH = 1.5


@dataclass(frozen=True)
class Process:
    """One process of the job.

    ``label`` is put in front of its output, ``environment`` is added to the launcher's own.
    ``command`` starts it from the launcher, on whichever host it belongs.

    Attributes:
        program: what runs there, to be shown.
        place: the name of its host, if it is not the launcher's machine.
        orders: what the command reads from its standard input, which then stays open for the
            numbers of signals (see ssh/runner.py); None: nothing.
        ranks: how many workers it starts itself, as ``mpirun`` does (see ssh/mpirun.py).
        terminate_ranks: sends these SIGTERM, given the process id of ``mpirun``, which itself would
            kill them.
    """

    label: str
    command: list[str]
    environment: dict[str, str]
    is_worker: bool
    program: list[str]
    place: str = ""
    orders: bytes | None = None
    ranks: int = 0
    terminate_ranks: Callable[[int], None] | None = None

    @property
    def name(self) -> str:
        """The name of the process in messages."""
        name = f"worker {self.label}" if self.is_worker and not self.ranks else self.label
        return f"{name} on {self.place}" if self.place else name

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return f"{self.name}: {shlex.join([*variables, *self.program])}"


def inherited_settings() -> list[str]:
    """Returns the launcher's own settings of networks and GPUs, which all processes inherit."""
    return [
        f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(_SETTINGS)
    ]


def process_on(
    label: str, host: Host, command: list[str], given: dict[str, str], *, is_worker: bool
) -> Process:
    """Returns a process of a host, with these variables of its own."""
    given = given | _heartbeat(host, given)
    orders = host.orders(command, OUTPUT | given)
    return Process(
        label, host.wrap(command), given, is_worker, command, place=host.place, orders=orders
    )


def _heartbeat(host: Host, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the limit of silence of a process, and BytePS's own, which its servers read."""
    seconds = heartbeat_seconds(os.environ) * (_LONGER_OVER_SSH if host.place else 1)
    found = {HEARTBEAT: f"{seconds:g}"}
    of_byteps = heartbeat_settings("byteps", found) if "DMLC_ROLE" in given else {}
    return found | {name: os.environ.get(name, value) for name, value in of_byteps.items()}


def processes(
    engine: str,
    command: list[str],
    places: Places,
    cleaner: Cleaner,
    resources: ExitStack,
) -> list[Process]:
    """Returns the processes of a job, in the order in which to start them.

    Raises UserError if the engine is not installed or cannot run this many workers.
    """
    num_workers = len(places.workers)
    helpers: list[Process] = []
    if engine == "local":
        if num_workers != 1:
            raise UserError(
                f"-np {num_workers} with --engine local, which is one process: give -np 1, or "
                "--engine collective, which needs nothing built"
            )
        own: list[dict[str, str]] = [{}]
    elif engine == "collective":
        own = _collective(places, resources)
    elif engine == "horovod":
        own = _horovod(places, resources)
    else:
        own, helpers = _byteps(places, cleaner, resources)
    addresses = [host.address for host in places.workers]
    # TensorFlow leaves files of its own (__autograph_generated_file*) in the temporary folder.
    temporary = {host.address: host.new_folder(cleaner) for host in each_once(places.workers)}
    workers = []
    for rank, (host, environment) in enumerate(zip(places.workers, own, strict=True)):
        position = {
            "OOODIST_ENGINE": engine,
            "OOODIST_RANK": str(rank),
            "OOODIST_SIZE": str(num_workers),
            "OOODIST_LOCAL_RANK": str(addresses[:rank].count(host.address)),
            "OOODIST_LOCAL_SIZE": str(addresses.count(host.address)),
            "TMPDIR": str(temporary[host.address]),
        }
        given = position | environment
        workers.append(process_on(str(rank), host, command, given, is_worker=True))
    return helpers + workers


def _collective(places: Places, resources: ExitStack) -> list[dict[str, str]]:
    addresses = [f"{host.address}:{host.reserve_port(resources)}" for host in places.workers]
    cluster = {"worker": addresses}
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}
        for rank, host in enumerate(places.workers)
    ]


def _horovod(places: Places, resources: ExitStack) -> list[dict[str, str]]:
    own = places.launcher
    slots = horovod_slots([host.address for host in places.workers])
    port = start_rendezvous(own, slots, resources)
    return [
        gloo_variables(slot, host.interface, own.address, port)
        for host, slot in zip(places.workers, slots, strict=True)
    ]


def horovod_slots(hosts: list[str]) -> list[Any]:
    """Returns Horovod's own description of each rank's place, a ``SlotInfo``.

    Args:
        hosts: the name or address of the host of each rank; ranks of one host follow each other.

    Raises:
        UserError: Horovod is not installed.
    """
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    except ImportError as error:
        raise _not_installed("horovod", str(error)) from error
    # "a:1,b:2": the hosts in order, each with its number of workers
    counted = ",".join(f"{host}:{count}" for host, count in Counter(hosts).items())
    return list(get_host_assignments(parse_hosts(counted), len(hosts), len(hosts)))


def start_rendezvous(own: Host, slots: list[Any], resources: ExitStack, port: int = 0) -> int:
    """Starts the server at which Horovod's ranks meet, and returns its port.

    Args:
        own: the host of this process, at whose address it listens.
        slots: those of ``horovod_slots``.
        resources: ends it.
        port: where it is to listen; 0: a free one.

    Raises:
        OSError: the port is taken.
    """
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    own.bound_socket(port).close()  # says better what is wrong
    # Not RendezvousServer, which listens on every network of the machine.
    with own.inside():
        server = RendezvousHTTPServer((own.address, port), RendezvousHandler, 0)
    resources.enter_context(server)
    server.daemon_threads = True
    server.init(slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    resources.callback(server.shutdown)
    return int(server.server_port)


def gloo_variables(slot: Any, interface: str, address: str, port: int) -> dict[str, str]:
    """Returns the variables of a rank of Horovod over gloo.

    Args:
        slot: its own of ``horovod_slots``.
        interface: the network interface that it is to use.
        address: of the rendezvous server, with its ``port``.
    """
    return {
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def _byteps(
    places: Places, cleaner: Cleaner, resources: ExitStack
) -> tuple[list[dict[str, str]], list[Process]]:
    check_byteps()
    root, *_ = places.servers
    port = root.reserve_port(resources)
    for host in each_once([*places.workers, *places.servers]):
        # Workers that are killed leave them.
        host.add_files(cleaner, f"/dev/shm/BytePS_ShM_{port}_")

    def everyone(host: Host, role: str) -> dict[str, str]:
        numbers = (len(places.workers), len(places.servers))
        return byteps_variables(role, *numbers, root.address, port, host.address)

    def helper(label: str, host: Host, role: str) -> Process:
        serve = [host.python, "-c", "import byteps.server"]
        return process_on(label, host, serve, everyone(host, role), is_worker=False)

    helpers = [helper("scheduler", root, "scheduler")]
    for index, host in enumerate(places.servers):
        helpers.append(helper(f"server {index}", host, "server"))
    workers = []
    for rank, host in enumerate(places.workers):
        sockets = socket_folder(host, cleaner)
        workers.append(everyone(host, "worker") | byteps_worker(rank, sockets))
    return workers, helpers


def check_byteps() -> None:
    """Raises UserError if BytePS is not installed."""
    try:
        import byteps  # noqa: F401
    except ImportError as error:
        raise _not_installed("byteps", str(error)) from error


def socket_folder(host: Host, cleaner: Cleaner) -> Path:
    """Returns a new folder of a host for the Unix sockets of a worker of BytePS.

    Raises:
        UserError: its path is too long.
    """
    folder = host.new_folder(cleaner)
    if len(bytes(folder)) > LONGEST_SOCKET_FOLDER:
        raise UserError(
            f"{folder}: BytePS puts Unix sockets into the temporary folder, whose path may have "
            f"at most {LONGEST_SOCKET_FOLDER} bytes: set TMPDIR to a shorter one"
        )
    return folder


def byteps_variables(
    role: str, num_workers: int, num_servers: int, root: str, port: int, own: str
) -> dict[str, str]:
    """Returns the variables of any process of BytePS.

    Args:
        role: worker, server or scheduler.
        root: address of the scheduler, with its ``port``.
        own: address of the process's host.
    """
    return {
        "DMLC_ROLE": role,
        "DMLC_NUM_WORKER": str(num_workers),
        "DMLC_NUM_SERVER": str(num_servers),
        "DMLC_PS_ROOT_URI": root,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": own,
        # A single worker would otherwise not use the servers, which would wait forever.
        "BYTEPS_FORCE_DISTRIBUTED": "1",
    }


def byteps_worker(rank: int, sockets: Path) -> dict[str, str]:
    """Returns the variables of a worker of BytePS besides those of any process."""
    return {
        "DMLC_WORKER_ID": str(rank),
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
        "BYTEPS_SOCKET_PATH": str(sockets),
    }


def _not_installed(engine: str, reason: str) -> UserError:
    return UserError(
        f"--engine {engine}: it is not installed ({reason}); run ooodist-engines {engine}, "
        f"or use --engine collective, which needs nothing built"
    )
