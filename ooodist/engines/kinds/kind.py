"""What is known of an engine before it is loaded: needs no TensorFlow, and no library of its own.

Whoever asks for something that depends on the engine (launchers, planner, profiler, job files) asks
its kind, and never for its name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NICENESS = "OOODIST_EXCHANGE_NICENESS"  # read by priority.py


class Launched(NamedTuple):
    """What a launcher has told this process.

    Attributes:
        size: the number of processes.
        reason: the variables that say so.
        on_purpose: whether even a single process is one of a job.
    """

    size: int
    reason: str
    on_purpose: bool = False


class Kind:
    """An engine's name, its traits, and how its processes find each other.

    Attributes:
        name: as in job files and on command lines.
        engine: ``package.module:Class`` of the :class:`~ooodist.engines.base.Engine`, which is
            imported when a process connects to its job.
        package: the package that sums, whose version decides what exchanges cost; None: it is
            TensorFlow.
        is_alone: whether it is for a single process.
        runs_pipelines: whether its ranks send each other messages instead of summing in a step.
        scatters: whether it gives each rank its row of a sum in a step
            (``Engine.scatter_in_graph``).
        gathers: whether it joins the ranks' tensors in a step (``Engine.gather_in_graph``).
        broadcasts: whether it gives all ranks the tensor of one in a step
            (``Engine.broadcast_in_graph``).
        has_servers: whether processes that are no workers add up, even for a single worker.
        sends_by_urgency: whether it picks the most urgent of the exchanges that it was given, in
            pieces, so that it is given all at once.
        fuses: whether it joins small tensors that are ready at the same time.
        credits: the numbers of exchanges in flight that a plan may choose. With more, libraries run
            them in an order of their own (Horovod's cache) or side by side (TensorFlow's
            collectives) rather than in the plan's order.
        agreement_trips: one-way trips of an agreement before each exchange, which other exchanges
            hide, while those of the exchange itself occupy the network; None: others hide them all.
        heartbeat_variable: the library's own variable for how long a silent process is waited for,
            in whole seconds.
        is_detected: whether the variables of a launcher suffice for it to be chosen.
        danger: what others can do who reach its ports, as it listens on all networks; "": it does
            not.
        listens_at_own_name: whether it listens at the address to which a host resolves its name.
        starter: the module by which launchers start its processes (see ``launcher/starters``);
            None: they do not.
        by_mpirun: for each name of a way to start it by ``mpirun``, the variables for that.
    """

    name: str
    engine: str
    package: str | None = None
    is_alone: bool = False
    runs_pipelines: bool = False
    scatters: bool = False
    gathers: bool = False
    broadcasts: bool = False
    has_servers: bool = False
    sends_by_urgency: bool = False
    fuses: bool = False
    credits: tuple[int, ...] = (1, 2)
    agreement_trips: int | None = None
    heartbeat_variable: str | None = None
    is_detected: bool = True
    danger: str = ""
    listens_at_own_name: bool = False
    starter: str | None = "ooodist.launcher.starters.addresses"
    by_mpirun: Mapping[str, Mapping[str, str]] = {}

    # Starting

    @property
    def sums(self) -> bool:
        """Whether several workers sum gradients in a step with it."""
        return not self.is_alone and not self.runs_pipelines

    def launched(self, environ: Mapping[str, str]) -> Launched | None:
        """What the variables of its launchers say; None if there are none.

        Raises:
            UserError: one has an invalid value.
        """
        return None

    def check_role(self, environ: Mapping[str, str]) -> None:
        """Raises UserError if this process was started, but not as a worker."""

    def launch_command(self, size: int) -> str:
        """The command that starts a job of this many processes, for messages."""
        return (
            f"python -m ooodist.launch -np {size} --engine {self.name} -- python -m ooodist.train …"
        )

    def variables(self, addresses: Sequence[str], rank: int) -> dict[str, str]:
        """Makes the variables by which a worker finds the others.

        Args:
            addresses: ``host:port`` for each worker; the port is free for it to listen at.
            rank: the worker's.
        """
        return {}

    # Settings of the library, which it reads when it starts

    def settings(self, environ: Mapping[str, str], stall_seconds: float | None) -> dict[str, str]:
        """Makes variables that are set where the user has not set them.

        Args:
            environ: the environment of this process.
            stall_seconds: seconds after which a job that stands still is ended; None: unknown.
        """
        return {}

    def planned_settings(
        self,
        environ: Mapping[str, str] | None = None,
        partition_bytes: int | None = None,
        pieces_in_flight: int | None = None,
    ) -> dict[str, str]:
        """Makes variables for a job that follows a plan, set where the user has not set them.

        Args:
            environ: the environment of this process; None: ``os.environ``.
            partition_bytes: the plan's partition size in bytes; None if it is not known yet.
            pieces_in_flight: a plan's credit, for an engine that sends by urgency; 0: any number;
                None if it is not known yet.
        """
        environ = os.environ if environ is None else environ
        if partition_bytes is None and self.is_on_one_host(environ):
            # Small pieces and long cycles pay where gradients wait for a network. On one machine
            # each piece is work for a core, and a cycle is a wait: a step of the quick start took
            # 1.11 to 1.15 times as long with BytePS, and one of an MLP 1.07 times with Horovod
            # (expr/at_home), even in a job whose plan is not found yet. The planner measures the
            # engine as it is.
            return {}
        return self.network_settings(partition_bytes, pieces_in_flight)

    def network_settings(
        self, partition_bytes: int | None, pieces_in_flight: int | None
    ) -> dict[str, str]:
        """Makes the library's variables for plans on a network; see :meth:`planned_settings`."""
        return {}

    def is_on_one_host(self, environ: Mapping[str, str]) -> bool:
        """Whether all processes of the job are known to be on this machine."""
        return False

    # Costs

    def trips(self, hosts: int, servers: int | None) -> int:
        """The one-way trips of an exchange: those of a ring.

        Args:
            hosts: of workers.
            servers: hosts of servers; None: they are on the workers' hosts, or there are none.
        """
        return 2 * (hosts - 1)
