"""Starts BytePS's scheduler, servers and workers; ``bpslaunch`` would hide their exit codes."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from ooodist.engines.heartbeat import heartbeat_settings
from ooodist.engines.kinds import Kind
from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import (
    Places,
    Process,
    heartbeat_on,
    not_installed,
    process_on,
)
from ooodist.launcher.host import Host, each_once
from ooodist.launcher.slurm.addresses import address_of
from ooodist.launcher.slurm.ports import keep_free
from ooodist.launcher.slurm.task import Task, first_port

LONGEST_SOCKET_FOLDER = 80  # a Unix socket's path has 107 bytes; BytePS truncates longer ones


def start(
    kind: Kind, places: Places, cleaner: Cleaner, resources: ExitStack
) -> tuple[list[dict[str, str]], list[Process]]:
    """The variables of each worker, and scheduler and servers, which start first."""
    _check_installed(kind)
    root, *_ = places.servers
    port = root.reserve_port(resources)
    for host in each_once([*places.workers, *places.servers]):
        # Workers that are killed leave them.
        host.add_files(cleaner, f"/dev/shm/BytePS_ShM_{port}_")

    def everyone(host: Host, role: str) -> dict[str, str]:
        numbers = (len(places.workers), len(places.servers))
        return _variables(role, *numbers, root.address, port, host) | _heartbeat(kind, host)

    def helper(label: str, host: Host, role: str) -> Process:
        serve = [host.python, "-c", "import byteps.server"]
        return process_on(label, host, serve, everyone(host, role), is_worker=False)

    helpers = [helper("scheduler", root, "scheduler")]
    for index, host in enumerate(places.servers):
        helpers.append(helper(f"server {index}", host, "server"))
    workers = []
    for rank, host in enumerate(places.workers):
        sockets = _socket_folder(host, cleaner)
        workers.append(everyone(host, "worker") | _of_worker(rank, sockets))
    return workers, helpers


def start_in_task(
    kind: Kind, task: Task, host: Host, cleaner: Cleaner, resources: ExitStack
) -> tuple[dict[str, str], list[Process]]:
    """The variables of the worker of a task, and what the job or its host needs once."""
    _check_installed(kind)
    port = first_port(task.job)
    root = host.address if task.host == 0 else address_of(task.hosts[0])
    cleaner.add_files(f"/dev/shm/BytePS_ShM_{port}_")  # workers that are killed leave them

    def everyone(role: str) -> dict[str, str]:
        numbers = (task.size, len(task.hosts))
        return _variables(role, *numbers, root, port, host) | _heartbeat(kind, host)

    def helper(label: str, role: str) -> Process:
        serve = [sys.executable, "-c", "import byteps.server"]
        return process_on(label, host, serve, everyone(role), is_worker=False)

    helpers = []
    if task.rank == 0:
        keep_free(host, port, task, resources)
        helpers.append(helper("scheduler", "scheduler"))
    if task.is_first_of_host:
        helpers.append(helper(f"server {task.host}", "server"))
    return everyone("worker") | _of_worker(task.rank, _socket_folder(host, cleaner)), helpers


def _check_installed(kind: Kind) -> None:
    """Raises UserError if BytePS is not installed."""
    try:
        import byteps  # noqa: F401
    except ImportError as error:
        raise not_installed(kind.name, str(error)) from error


def _socket_folder(host: Host, cleaner: Cleaner) -> Path:
    """A new folder of a host for the Unix sockets of a worker of BytePS.

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


def _variables(
    role: str, num_workers: int, num_servers: int, root: str, port: int, host: Host
) -> dict[str, str]:
    """The variables of any process of BytePS.

    Args:
        role: worker, server or scheduler.
        root: address of the scheduler, with its ``port``.
        host: the process's own.
    """
    return {
        "DMLC_ROLE": role,
        "DMLC_NUM_WORKER": str(num_workers),
        "DMLC_NUM_SERVER": str(num_servers),
        "DMLC_PS_ROOT_URI": root,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": host.address,
        # A single worker would otherwise not use the servers, which would wait forever.
        "BYTEPS_FORCE_DISTRIBUTED": "1",
    }


def _heartbeat(kind: Kind, host: Host) -> dict[str, str]:
    """BytePS's own limit of silence, which its servers read, unless the user has set it."""
    found = heartbeat_settings(kind, heartbeat_on(host))
    return {name: os.environ.get(name, value) for name, value in found.items()}


def _of_worker(rank: int, sockets: Path) -> dict[str, str]:
    """The variables of a worker of BytePS besides those of any process."""
    return {
        "DMLC_WORKER_ID": str(rank),
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
        "BYTEPS_SOCKET_PATH": str(sockets),
    }
