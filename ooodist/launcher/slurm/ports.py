"""Ports that follow from the number of a Slurm job, which may be taken."""

from __future__ import annotations

from contextlib import ExitStack

from ooodist.errors import UserError
from ooodist.launcher.host import Host
from ooodist.launcher.slurm.task import Task


def keep_free(host: Host, port: int, task: Task, resources: ExitStack) -> None:
    """Sees that a port is free, and that it is not handed out until a server listens there."""
    try:
        resources.enter_context(host.bound_socket(port))
    except OSError as error:
        raise taken(host, port, task, error) from error


def taken(host: Host, port: int, task: Task, error: OSError) -> UserError:
    """The error of a port that is in use."""
    return UserError(
        f"port {port} of {task.hosts[task.host]} ({host.address}) cannot be used: "
        f"{error.strerror}. A job's ports follow from its number, which is {task.job}: submit it "
        "again, which gives it another one, or ask for hosts of its own (--exclusive)"
    )
