"""What a task of a Slurm step starts: its rank, and what the job or its host needs once."""

from __future__ import annotations

from contextlib import ExitStack

from ooodist.engines.kinds import find
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Process, process_on, starter_of
from ooodist.launcher.slurm.addresses import host_of
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
    temporary = cleaner.new_folder()
    position = {
        "OOODIST_ENGINE": engine,
        "OOODIST_RANK": str(task.rank),
        "OOODIST_SIZE": str(task.size),
        "OOODIST_LOCAL_RANK": str(task.local_rank),
        "OOODIST_LOCAL_SIZE": str(task.tasks[task.host]),
        "TMPDIR": str(temporary),
    }
    host = host_of(task)
    kind = find(engine)
    own, helpers = starter_of(kind).start_in_task(kind, task, host, cleaner, resources)
    given = position | own
    return [*helpers, process_on(str(task.rank), host, command, given, is_worker=True)]
