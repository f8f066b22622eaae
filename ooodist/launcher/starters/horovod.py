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
        from horovod.runner.gloo_run import create_slot_env_vars
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
    everyone = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": root.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }
    variables = [
        everyone | create_slot_env_vars(slot) | {"HOROVOD_GLOO_IFACE": host.interface}
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
