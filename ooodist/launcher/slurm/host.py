"""The hosts of a Slurm step, as one of its tasks sees them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import Host
from ooodist.launcher.slurm.task import Task, first_port


@dataclass(frozen=True)
class TaskHost(Host):
    """A host of a step, whose ports follow from the number of the job, so that all know them.

    Attributes:
        task: the task that this process is.
        number: that of the host.
    """

    task: Task = field(kw_only=True)
    number: int = field(kw_only=True)
    _next_ports: count[int] = field(default_factory=count)

    @property
    def known_as(self) -> str:
        return self.task.hosts[self.number]

    @property
    def is_here(self) -> bool:
        """Whether this task starts what its host needs once."""
        return self._is_own and self.task.is_first_of_host

    @property
    def _is_own(self) -> bool:
        return self.number == self.task.host

    def reserve_port(self, resources: ExitStack) -> int:
        """The next port; that of this task stays bound, so that it is not handed out.

        Raises:
            UserError: it is in use.
        """
        local_rank = next(self._next_ports)
        port = first_port(self.task.job) + local_rank
        if self._is_own and local_rank == self.task.local_rank:
            try:
                resources.enter_context(self.bound_socket(port))
            except OSError as error:
                raise UserError(
                    f"port {port} of {self.known_as} ({self.address}) cannot be used: "
                    f"{error.strerror}. A job's ports follow from its number, which is "
                    f"{self.task.job}: submit it again, which gives it another one, or ask for "
                    "hosts of its own (--exclusive)"
                ) from error
        return port

    def new_folder(self, cleaner: Cleaner) -> Path:
        """A new temporary folder; on another host, each task has its own."""
        return super().new_folder(cleaner) if self._is_own else Path()

    def add_files(self, cleaner: Cleaner, prefix: str) -> None:
        """Has files removed after the job, on this host; the others do the same."""
        if self._is_own:
            super().add_files(cleaner, prefix)
