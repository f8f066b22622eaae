"""Finds the hosts of a job among those of ``--hosts``, at its start and at each restart."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Places
from ooodist.launcher.host import Host, each_once
from ooodist.launcher.ssh.listed import first_workers
from ooodist.launcher.ssh.preflight import Way, meet, own_address


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    Attributes:
        hosts: all that may be used, each once a worker that it takes.
        workers: how many.
        servers: hosts of BytePS's servers; empty: one beside the workers of each host.
        least: how many workers will do when hosts do not answer at a restart.
    """

    hosts: Sequence[str]
    workers: int
    servers: Sequence[str]
    least: int


def find_places(
    wanted: Wanted,
    way: Way,
    engine: str,
    command: list[str],
    cleaner: Cleaner,
    resources: ExitStack,
    *,
    is_restart: bool,
) -> tuple[Places, list[str]]:
    """Meets the hosts and returns the places of the processes, and which hosts are left out, why.

    At a restart all hosts are asked: those that answer first in the list get the workers.

    Raises:
        UserError: too few hosts answer, or they do not fit each other.
    """
    hosts = wanted.hosts if is_restart else first_workers(wanted.hosts, wanted.workers)
    asked = Counter([*hosts, *wanted.servers])
    found, out = meet(asked, way, engine, command, cleaner, resources)
    workers = [found[name] for name in hosts if name in found][: wanted.workers]
    least = wanted.least if is_restart else wanted.workers
    if len(workers) < least or not set(wanted.servers) <= set(found):
        raise UserError(
            f"{'; '.join(out)}; {len(workers)} of {least} workers have a host: see that "
            "`ssh HOST true` works for each without a question, or leave the host out"
        )
    servers = [found[name] for name in wanted.servers] or each_once(workers)
    own = Host(address=own_address(workers[0].address))
    return Places(workers, servers, launcher=own), out
