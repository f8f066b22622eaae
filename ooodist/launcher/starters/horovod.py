"""Starts Horovod's ranks over gloo, as horovodrun does, but on the job's own network alone."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

from ooodist.engines.kinds import Kind
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Places, Process, not_installed
from ooodist.launcher.host import Host
from ooodist.launcher.slurm.addresses import address_of
from ooodist.launcher.slurm.ports import taken
from ooodist.launcher.slurm.task import Task, first_port


def start(
    kind: Kind, places: Places, cleaner: Cleaner, resources: ExitStack
) -> tuple[list[dict[str, str]], list[Process]]:
    """The variables of each worker; see :mod:`ooodist.launcher.starters`."""
    own = places.launcher
    slots = _slots(kind, [host.address for host in places.workers])
    port = _start_rendezvous(own, slots, resources)
    variables = [
        _variables(slot, host.interface, own.address, port)
        for host, slot in zip(places.workers, slots, strict=True)
    ]
    return variables, []


def start_in_task(
    kind: Kind, task: Task, host: Host, cleaner: Cleaner, resources: ExitStack
) -> tuple[dict[str, str], list[Process]]:
    """The variables of the worker of a task; see :mod:`ooodist.launcher.starters`."""
    port = first_port(task.job)
    slots = _slots(kind, task.names)
    if task.rank == 0:
        try:
            _start_rendezvous(host, slots, resources, port)
        except OSError as error:
            raise taken(host, port, task, error) from error
    root = host.address if task.host == 0 else address_of(task.hosts[0])
    return _variables(slots[task.rank], host.interface, root, port), []


def _slots(kind: Kind, hosts: list[str]) -> list[Any]:
    """Horovod's own description of each rank's place, a ``SlotInfo``.

    Args:
        kind: Horovod.
        hosts: the name or address of the host of each rank; ranks of one host follow each other.

    Raises:
        UserError: Horovod is not installed.
    """
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    except ImportError as error:
        raise not_installed(kind.name, str(error)) from error
    # "a:1,b:2": the hosts in order, each with its number of workers
    counted = ",".join(f"{host}:{count}" for host, count in Counter(hosts).items())
    return list(get_host_assignments(parse_hosts(counted), len(hosts), len(hosts)))


def _start_rendezvous(own: Host, slots: list[Any], resources: ExitStack, port: int = 0) -> int:
    """Starts the server at which Horovod's ranks meet, and returns its port.

    Args:
        own: the host of this process, at whose address it listens.
        slots: those of ``_slots``.
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


def _variables(slot: Any, interface: str, address: str, port: int) -> dict[str, str]:
    """The variables of a rank of Horovod over gloo.

    Args:
        slot: its own of ``_slots``.
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
