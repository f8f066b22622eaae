"""What the processes of one job are started with, for each engine.

``processes`` is the only function for others. It reserves ports and folders, so it takes an
ExitStack that ends with the job.
"""

import json
import socket
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass

from cleaner import Cleaner

from ooodist.errors import UserError

HOST = "127.0.0.1"
LONGEST_SOCKET_FOLDER = 80  # a Unix socket's path has 107 bytes; BytePS cuts off what is longer


@dataclass(frozen=True)
class Process:
    """One process of the job.

    ``label`` stands in front of its output, ``environment`` is added to the launcher's own.
    """

    label: str
    command: list[str]
    environment: dict[str, str]
    is_worker: bool

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"worker {self.label}" if self.is_worker else self.label


def processes(
    engine: str,
    command: list[str],
    num_workers: int,
    num_servers: int,
    cleaner: Cleaner,
    resources: ExitStack,
) -> list[Process]:
    """The processes of a job, in the order in which to start them.

    Raises UserError if the engine is not installed or cannot run so many workers.
    """
    helpers: list[Process] = []
    if engine == "local":
        if num_workers != 1:
            raise UserError(
                f"-np {num_workers} with --engine local, which is one process: give -np 1, or "
                "--engine collective, which needs nothing built"
            )
        own: list[dict[str, str]] = [{}]
    elif engine == "collective":
        own = _collective(num_workers, resources)
    elif engine == "horovod":
        own = _horovod(num_workers, resources)
    else:
        own, helpers = _byteps(num_workers, num_servers, cleaner, resources)
    workers = []
    for rank, environment in enumerate(own):
        position = {
            "OOODIST_ENGINE": engine,
            "OOODIST_RANK": str(rank),
            "OOODIST_SIZE": str(num_workers),
            "OOODIST_LOCAL_RANK": str(rank),
            "OOODIST_LOCAL_SIZE": str(num_workers),
        }
        workers.append(Process(str(rank), command, position | environment, is_worker=True))
    return helpers + workers


def _reserve_port(resources: ExitStack) -> int:
    """A free port of this host that nobody else is given as long as the job lasts.

    The socket stays bound but does not listen, and allows to reuse its address. Linux then lets
    a server that allows the same (those of TensorFlow and BytePS do) listen there, but never
    hands the port out as a free one. A port that is let go before the server starts, seconds
    later, can be taken by another launcher.
    """
    reserved = resources.enter_context(socket.socket())
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return int(reserved.getsockname()[1])


def _collective(num_workers: int, resources: ExitStack) -> list[dict[str, str]]:
    cluster = {"worker": [f"{HOST}:{_reserve_port(resources)}" for _ in range(num_workers)]}
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}
        for rank in range(num_workers)
    ]


def _horovod(num_workers: int, resources: ExitStack) -> list[dict[str, str]]:
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        raise _not_installed("horovod", str(error)) from error
    slots = get_host_assignments(parse_hosts(f"{HOST}:{num_workers}"), num_workers, num_workers)
    # Not RendezvousServer, which listens on every network of the machine.
    server = resources.enter_context(RendezvousHTTPServer((HOST, 0), RendezvousHandler, 0))
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
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": HOST,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
        }
        for slot in slots
    ]


def _byteps(
    num_workers: int, num_servers: int, cleaner: Cleaner, resources: ExitStack
) -> tuple[list[dict[str, str]], list[Process]]:
    try:
        import byteps  # noqa: F401
    except ImportError as error:
        raise _not_installed("byteps", str(error)) from error
    folder = cleaner.new_folder()
    if len(bytes(folder)) > LONGEST_SOCKET_FOLDER:
        raise UserError(
            f"{folder}: BytePS puts Unix sockets into the temporary folder, whose path may have "
            f"at most {LONGEST_SOCKET_FOLDER} bytes: set TMPDIR to a shorter one"
        )
    port = _reserve_port(resources)
    cleaner.add_files(f"/dev/shm/BytePS_ShM_{port}_")  # workers that are killed leave them
    everyone = {
        "DMLC_NUM_WORKER": str(num_workers),
        "DMLC_NUM_SERVER": str(num_servers),
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": HOST,
        # One worker alone would otherwise not use the servers, which would wait for ever.
        "BYTEPS_FORCE_DISTRIBUTED": "1",
    }
    serve = [sys.executable, "-c", "import byteps.server"]
    helpers = [Process("scheduler", serve, everyone | {"DMLC_ROLE": "scheduler"}, is_worker=False)]
    for index in range(num_servers):
        role = {"DMLC_ROLE": "server"}
        helpers.append(Process(f"server {index}", serve, everyone | role, is_worker=False))
    workers = []
    for rank in range(num_workers):
        sockets = folder / str(rank)
        sockets.mkdir()
        role = {
            "DMLC_ROLE": "worker",
            "DMLC_WORKER_ID": str(rank),
            "BYTEPS_LOCAL_RANK": "0",
            "BYTEPS_LOCAL_SIZE": "1",
            "BYTEPS_SOCKET_PATH": str(sockets),
        }
        workers.append(everyone | role)
    return workers, helpers


def _not_installed(engine: str, reason: str) -> UserError:
    return UserError(
        f"--engine {engine}: it is not installed ({reason}); run scripts/install_engines.sh "
        f"{engine}, or use --engine collective, which needs nothing built"
    )
