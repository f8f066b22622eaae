"""What a task of a Slurm step starts: its rank, and what the job or its host needs once."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

from ooodist.errors import UserError
from ooodist.launcher import environment
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Process
from ooodist.launcher.host import Host
from ooodist.launcher.slurm.addresses import address_of, host_of
from ooodist.launcher.slurm.task import Task, first_port

ENGINES = ("collective", "horovod", "byteps")


def processes(
    engine: str, command: list[str], task: Task, cleaner: Cleaner, resources: ExitStack
) -> list[Process]:
    """Returns the processes of this task, in the order in which to start them.

    Args:
        engine: one of ``ENGINES``.
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
    helpers: list[Process] = []
    if engine == "collective":
        own = _collective(task, host, resources)
    elif engine == "horovod":
        own = _horovod(task, host, resources)
    else:
        own, helpers = _byteps(task, host, cleaner, resources)
    given = position | own
    return [*helpers, environment.process_on(str(task.rank), host, command, given, is_worker=True)]


def _collective(task: Task, host: Host, resources: ExitStack) -> dict[str, str]:
    port = first_port(task.job)
    _keep_free(host, port + task.local_rank, task, resources)
    workers = [
        f"{name}:{port + local}" for name, local in zip(task.names, task.local_ranks, strict=True)
    ]
    place = {"type": "worker", "index": task.rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": place})}


def _horovod(task: Task, host: Host, resources: ExitStack) -> dict[str, str]:
    port = first_port(task.job)
    slots = environment.horovod_slots(task.names)
    if task.rank == 0:
        try:
            environment.start_rendezvous(host, slots, resources, port)
        except OSError as error:
            raise _taken(host, port, task, error) from error
    root = host.address if task.host == 0 else address_of(task.hosts[0])
    return environment.gloo_variables(slots[task.rank], host.interface, root, port)


def _byteps(
    task: Task, host: Host, cleaner: Cleaner, resources: ExitStack
) -> tuple[dict[str, str], list[Process]]:
    environment.check_byteps()
    port = first_port(task.job)
    root = host.address if task.host == 0 else address_of(task.hosts[0])
    cleaner.add_files(f"/dev/shm/BytePS_ShM_{port}_")  # workers that are killed leave them

    def everyone(role: str) -> dict[str, str]:
        numbers = (task.size, len(task.hosts))
        return environment.byteps_variables(role, *numbers, root, port, host.address)

    def helper(label: str, role: str) -> Process:
        serve = [sys.executable, "-c", "import byteps.server"]
        return environment.process_on(label, host, serve, everyone(role), is_worker=False)

    helpers = []
    if task.rank == 0:
        _keep_free(host, port, task, resources)
        helpers.append(helper("scheduler", "scheduler"))
    if task.is_first_of_host:
        helpers.append(helper(f"server {task.host}", "server"))
    sockets = environment.socket_folder(host, cleaner)
    return everyone("worker") | environment.byteps_worker(task.rank, sockets), helpers


def _keep_free(host: Host, port: int, task: Task, resources: ExitStack) -> None:
    """Sees that a port is free, and that it is not handed out until a server listens there."""
    try:
        resources.enter_context(host.bound_socket(port))
    except OSError as error:
        raise _taken(host, port, task, error) from error


def _taken(host: Host, port: int, task: Task, error: OSError) -> UserError:
    return UserError(
        f"port {port} of {task.hosts[task.host]} ({host.address}) cannot be used: "
        f"{error.strerror}. A job's ports follow from its number, which is {task.job}: submit it "
        "again, which gives it another one, or ask for hosts of its own (--exclusive)"
    )
