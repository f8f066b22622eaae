"""What a task of a Slurm step starts: its rank, and what the job or its host needs once."""

from __future__ import annotations

from contextlib import ExitStack

from ooodist.launcher import environment
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Places, Process
from ooodist.launcher.slurm.addresses import hosts_of
from ooodist.launcher.slurm.task import Task


def processes(
    engine: str, command: list[str], task: Task, cleaner: Cleaner, resources: ExitStack
) -> list[Process]:
    """The processes of this task, in the order in which to start them.

    Args:
        engine: one with a starter, for several workers.
        command: what each rank runs.
        task: the place of this task.
        cleaner: gets temporary folders and shared memory.
        resources: gets what must live as long as the processes, ports above all.

    Raises:
        UserError: the engine is not installed, hosts cannot be reached, or a port is taken.
    """
    hosts = hosts_of(task)
    workers = [host for host in hosts for _ in range(task.tasks[host.number])]
    every = environment.processes(
        engine, command, Places(workers, hosts, launcher=hosts[0]), cleaner, resources
    )
    return [
        each
        for each in every
        if (each.label == str(task.rank) if each.is_worker else each.host.is_here)
    ]
