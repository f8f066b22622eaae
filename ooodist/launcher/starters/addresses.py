"""Starts workers that need to know nothing but each other's addresses."""

from __future__ import annotations

from contextlib import ExitStack

from ooodist.engines.kinds import Kind
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Places, Process


def start(
    kind: Kind, places: Places, cleaner: Cleaner, resources: ExitStack
) -> tuple[list[dict[str, str]], list[Process]]:
    """The variables of each worker, which gets a port of its own."""
    addresses = [f"{host.known_as}:{host.reserve_port(resources)}" for host in places.workers]
    return [kind.variables(addresses, rank) for rank in range(len(addresses))], []
