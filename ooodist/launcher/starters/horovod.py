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


def start(
    kind: Kind, places: Places, cleaner: Cleaner, resources: ExitStack
) -> tuple[list[dict[str, str]], list[Process]]:
    """The variables of each worker."""
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    except ImportError as error:
        raise not_installed(kind.name, str(error)) from error
    # "a:1,b:2": the hosts in order, each with its number of workers, which follow each other
    number = len(places.workers)
    counted = Counter(host.known_as for host in places.workers)
    listed = ",".join(f"{name}:{count}" for name, count in counted.items())
    slots = list(get_host_assignments(parse_hosts(listed), number, number))
    root = places.launcher
    port = root.reserve_port(resources)
    if root.is_here:
        _start_rendezvous(root, port, slots, resources)
    variables = [
        _variables(slot, host.interface, root.address, port)
        for host, slot in zip(places.workers, slots, strict=True)
    ]
    return variables, []


def _start_rendezvous(own: Host, port: int, slots: list[Any], resources: ExitStack) -> None:
    """Starts the server at which Horovod's ranks meet.

    Args:
        own: the host of this process, at whose address it listens.
        port: of that host.
        slots: Horovod's own description of each rank's place, a ``SlotInfo``.
        resources: ends it.
    """
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    # Not RendezvousServer, which listens on every network of the machine.
    with own.inside():
        server = RendezvousHTTPServer((own.address, port), RendezvousHandler, 0)
    resources.enter_context(server)
    server.daemon_threads = True
    server.init(slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    resources.callback(server.shutdown)


def _variables(slot: Any, interface: str, address: str, port: int) -> dict[str, str]:
    """The variables of a rank of Horovod over gloo.

    Args:
        slot: its own place, a ``SlotInfo``.
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
