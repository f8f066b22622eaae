"""Makes the commands and environments of the processes of one job, for each engine.

It reserves ports and folders, so it takes an ExitStack that is closed at the end of the job.
"""

import importlib
import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ooodist.engines.heartbeat import HEARTBEAT, heartbeat_seconds
from ooodist.engines.kinds import find
from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import Host, each_once

MACHINE = Host()
# Makes Python write line by line, and in UTF-8 whatever the locale.
OUTPUT = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}


@dataclass(frozen=True)
class Places:
    """The hosts of a job's workers and servers, and of the launcher's own service.

    BytePS's scheduler runs on the host of the first server.
    """

    workers: Sequence[Host]
    servers: Sequence[Host]
    launcher: Host = MACHINE


# What decides how ranks reach each other, and which GPUs they see.
_SETTINGS = (
    "NCCL_",
    "OFI_NCCL_",
    "FI_",
    "UCX_",
    "OMPI_MCA_",
    "HOROVOD_",
    "BYTEPS_",
    "CUDA_VISIBLE_",
)

# On hosts that are reached over ssh, engines wait longer for each other than the launcher for them:
# it ends the job first, with the host's name, after 1 to 1.2 times the limit (preflight.py).
_LONGER_OVER_SSH = 1.5


@dataclass(frozen=True)
class Process:
    """One process of the job.

    ``label`` is put in front of its output, ``environment`` is added to the launcher's own.
    ``command`` starts it from the launcher, on whichever host it belongs.

    Attributes:
        program: what runs there, to be shown.
        host: where it runs.
        orders: what the command reads from its standard input, which then stays open for the
            numbers of signals (see ssh/runner.py); None: nothing.
        ranks: how many workers it starts itself, as ``mpirun`` does (see ssh/mpirun.py).
    """

    label: str
    command: list[str]
    environment: dict[str, str]
    is_worker: bool
    program: list[str]
    host: Host = MACHINE
    orders: bytes | None = None
    ranks: int = 0

    @property
    def name(self) -> str:
        """The name of the process in messages."""
        name = f"worker {self.label}" if self.is_worker and not self.ranks else self.label
        return f"{name} on {self.host.place}" if self.host.place else name

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return f"{self.name}: {shlex.join([*variables, *self.program])}"


def inherited_settings() -> list[str]:
    """The launcher's own settings of networks and GPUs, which all processes inherit."""
    return [
        f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(_SETTINGS)
    ]


def process_on(
    label: str, host: Host, command: list[str], given: dict[str, str], *, is_worker: bool
) -> Process:
    """A process of a host, with these variables of its own."""
    given = given | heartbeat_on(host)
    orders = host.orders(command, OUTPUT | given)
    return Process(label, host.wrap(command), given, is_worker, command, host, orders)


def heartbeat_on(host: Host) -> dict[str, str]:
    """The limit of silence of a process of this host."""
    seconds = heartbeat_seconds(os.environ) * (_LONGER_OVER_SSH if host.place else 1)
    return {HEARTBEAT: f"{seconds:g}"}


def processes(
    engine: str,
    command: list[str],
    places: Places,
    cleaner: Cleaner,
    resources: ExitStack,
) -> list[Process]:
    """The processes of a job, in the order in which to start them.

    Raises UserError if the engine is not installed or cannot run this many workers.
    """
    num_workers, kind = len(places.workers), find(engine)
    if kind.is_alone and num_workers != 1:
        raise UserError(
            f"-np {num_workers} with --engine {engine}, which is one process: give -np 1, or "
            "--engine collective, which needs nothing built"
        )
    assert kind.starter is not None, engine
    starter: Any = importlib.import_module(kind.starter)
    own, helpers = starter.start(kind, places, cleaner, resources)
    names = [host.known_as for host in places.workers]
    # TensorFlow leaves files of its own (__autograph_generated_file*) in the temporary folder.
    temporary = {host.known_as: host.new_folder(cleaner) for host in each_once(places.workers)}
    workers = []
    for rank, (host, environment) in enumerate(zip(places.workers, own, strict=True)):
        position = {
            "OOODIST_ENGINE": engine,
            "OOODIST_RANK": str(rank),
            "OOODIST_SIZE": str(num_workers),
            "OOODIST_LOCAL_RANK": str(names[:rank].count(names[rank])),
            "OOODIST_LOCAL_SIZE": str(names.count(names[rank])),
            "TMPDIR": str(temporary[names[rank]]),
        }
        given = position | environment
        workers.append(process_on(str(rank), host, command, given, is_worker=True))
    return helpers + workers


def not_installed(engine: str, reason: str) -> UserError:
    """The error of an engine whose package cannot be imported."""
    return UserError(
        f"--engine {engine}: it is not installed ({reason}); run ooodist-engines {engine}, "
        f"or use --engine collective, which needs nothing built"
    )
