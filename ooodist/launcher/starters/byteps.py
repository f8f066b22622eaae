"""Starts BytePS's scheduler, servers and workers; ``bpslaunch`` would hide their exit codes."""

from __future__ import annotations

import os
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

LONGEST_SOCKET_FOLDER = 80  # a Unix socket's path has 107 bytes; BytePS truncates longer ones


def start(
    kind: Kind, places: Places, cleaner: Cleaner, resources: ExitStack
) -> tuple[list[dict[str, str]], list[Process]]:
    """The variables of each worker, and scheduler and servers, which start first."""
    try:
        import byteps  # noqa: F401
    except ImportError as error:
        raise not_installed(kind.name, str(error)) from error
    root, *_ = places.servers
    port = root.reserve_port(resources)
    for host in each_once([*places.workers, *places.servers]):
        # Workers that are killed leave them.
        host.add_files(cleaner, f"/dev/shm/BytePS_ShM_{port}_")

    def everyone(host: Host, role: str) -> dict[str, str]:
        # Its own limit of silence, which its servers read, unless the user has set it.
        heartbeat = heartbeat_settings(kind, heartbeat_on(host))
        return {
            "DMLC_ROLE": role,
            "DMLC_NUM_WORKER": str(len(places.workers)),
            "DMLC_NUM_SERVER": str(len(places.servers)),
            "DMLC_PS_ROOT_URI": root.address,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NODE_HOST": host.address,
            # A single worker would otherwise not use the servers, which would wait forever.
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            **{name: os.environ.get(name, value) for name, value in heartbeat.items()},
        }

    def helper(label: str, host: Host, role: str) -> Process:
        serve = [host.python, "-c", "import byteps.server"]
        return process_on(label, host, serve, everyone(host, role), is_worker=False)

    def worker(rank: int, host: Host) -> dict[str, str]:
        return everyone(host, "worker") | {
            "DMLC_WORKER_ID": str(rank),
            "BYTEPS_LOCAL_RANK": "0",
            "BYTEPS_LOCAL_SIZE": "1",
            "BYTEPS_SOCKET_PATH": str(_socket_folder(host, cleaner)),
        }

    helpers = [helper("scheduler", root, "scheduler")]
    for index, host in enumerate(places.servers):
        helpers.append(helper(f"server {index}", host, "server"))
    return [worker(rank, host) for rank, host in enumerate(places.workers)], helpers


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
