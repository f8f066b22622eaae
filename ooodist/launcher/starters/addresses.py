"""Starts workers that need to know nothing but each other's addresses."""

from __future__ import annotations

from contextlib import ExitStack

from ooodist.engines.kinds import Kind
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Places, Process
from ooodist.launcher.host import Host
from ooodist.launcher.slurm.ports import keep_free
from ooodist.launcher.slurm.task import Task, first_port


def start(
    kind: Kind, places: Places, cleaner: Cleaner, resources: ExitStack
) -> tuple[list[dict[str, str]], list[Process]]:
    """The variables of each worker, which gets a port of its own."""
    addresses = [f"{host.address}:{host.reserve_port(resources)}" for host in places.workers]
    return [kind.variables(addresses, rank) for rank in range(len(addresses))], []


def start_in_task(
    kind: Kind, task: Task, host: Host, cleaner: Cleaner, resources: ExitStack
) -> tuple[dict[str, str], list[Process]]:
    """The variables of the worker of a task, whose port follows from the number of the job."""
    port = first_port(task.job)
    keep_free(host, port + task.local_rank, task, resources)
    addresses = [
        f"{name}:{port + local}" for name, local in zip(task.names, task.local_ranks, strict=True)
    ]
    return kind.variables(addresses, task.rank), []
