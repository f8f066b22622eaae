"""Makes the commands and environments of the processes of one job, for each engine.

``processes`` is the only public function. It reserves ports and folders, so it takes an ExitStack
that is closed at the end of the job.
"""

import json
import shlex
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import Host

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
    """

    label: str
    command: list[str]
    environment: dict[str, str]
    is_worker: bool
    program: list[str]
    place: str = ""
    orders: bytes | None = None
    ranks: int = 0

    @property
    def name(self) -> str:
        """The name of the process in messages."""
        name = f"worker {self.label}" if self.is_worker and not self.ranks else self.label
        return f"{name} on {self.place}" if self.place else name

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return f"{self.name}: {shlex.join([*variables, *self.program])}"


def _process(
    label: str, host: Host, command: list[str], given: dict[str, str], *, is_worker: bool
) -> Process:
    orders = host.orders(command, OUTPUT | given)
    return Process(
        label, host.wrap(command), given, is_worker, command, place=host.place, orders=orders
    )


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
    temporary = {host.address: host.new_folder(cleaner) for host in _each_once(places.workers)}
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
        workers.append(_process(str(rank), host, command, given, is_worker=True))
    return helpers + workers


def _each_once(hosts: list[Host]) -> list[Host]:
    return list({host.address: host for host in hosts}.values())


def _collective(places: Places, resources: ExitStack) -> list[dict[str, str]]:
    addresses = [f"{host.address}:{host.reserve_port(resources)}" for host in places.workers]
    cluster = {"worker": addresses}
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}
        for rank in range(len(addresses))
    ]


def _horovod(places: Places, resources: ExitStack) -> list[dict[str, str]]:
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        raise _not_installed("horovod", str(error)) from error
    addresses = [host.address for host in places.workers]
    # "a:1,b:2": the addresses in order, each with its number of workers
    hosts = ",".join(f"{address}:{count}" for address, count in Counter(addresses).items())
    slots = get_host_assignments(parse_hosts(hosts), len(addresses), len(addresses))
    own = places.launcher
    # Not RendezvousServer, which listens on every network of the machine.
    with own.inside():
        server = RendezvousHTTPServer((own.address, 0), RendezvousHandler, 0)
    resources.enter_context(server)
    server.daemon_threads = True
    server.init(slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    resources.callback(server.shutdown)
    return [
        {
            "HOROVOD_RANK": str(slot.rank),
            "HOROVOD_SIZE": str(slot.size),
            "HOROVOD_LOCAL_RANK": str(slot.local_rank),
            "HOROVOD_LOCAL_SIZE": str(slot.local_size),
            "HOROVOD_CROSS_RANK": str(slot.cross_rank),
            "HOROVOD_CROSS_SIZE": str(slot.cross_size),
            "HOROVOD_HOSTNAME": slot.hostname,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": host.interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": own.address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
        }
        for host, slot in zip(places.workers, slots, strict=True)
    ]


def _byteps(
    places: Places, cleaner: Cleaner, resources: ExitStack
) -> tuple[list[dict[str, str]], list[Process]]:
    try:
        import byteps  # noqa: F401
    except ImportError as error:
        raise _not_installed("byteps", str(error)) from error
    root, *_ = places.servers
    port = root.reserve_port(resources)
    for host in _each_once([*places.workers, *places.servers]):
        # Workers that are killed leave them.
        host.add_files(cleaner, f"/dev/shm/BytePS_ShM_{port}_")

    def everyone(host: Host, role: str) -> dict[str, str]:
        return {
            "DMLC_ROLE": role,
            "DMLC_NUM_WORKER": str(len(places.workers)),
            "DMLC_NUM_SERVER": str(len(places.servers)),
            "DMLC_PS_ROOT_URI": root.address,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NODE_HOST": host.address,
            # A single worker would otherwise not use the servers, which would wait forever.
            "BYTEPS_FORCE_DISTRIBUTED": "1",
        }

    def helper(label: str, host: Host, role: str) -> Process:
        serve = [host.python, "-c", "import byteps.server"]
        return _process(label, host, serve, everyone(host, role), is_worker=False)

    helpers = [helper("scheduler", root, "scheduler")]
    for index, host in enumerate(places.servers):
        helpers.append(helper(f"server {index}", host, "server"))
    workers = []
    for rank, host in enumerate(places.workers):
        sockets = host.new_folder(cleaner)
        if len(bytes(sockets)) > LONGEST_SOCKET_FOLDER:
            raise UserError(
                f"{sockets}: BytePS puts Unix sockets into the temporary folder, whose path may "
                f"have at most {LONGEST_SOCKET_FOLDER} bytes: set TMPDIR to a shorter one"
            )
        own = {
            "DMLC_WORKER_ID": str(rank),
            "BYTEPS_LOCAL_RANK": "0",
            "BYTEPS_LOCAL_SIZE": "1",
            "BYTEPS_SOCKET_PATH": str(sockets),
        }
        workers.append(everyone(host, "worker") | own)
    return workers, helpers


def _not_installed(engine: str, reason: str) -> UserError:
    return UserError(
        f"--engine {engine}: it is not installed ({reason}); run scripts/install_engines.sh "
        f"{engine}, or use --engine collective, which needs nothing built"
    )
