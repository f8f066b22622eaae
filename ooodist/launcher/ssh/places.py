"""Finds the hosts of a job among those of ``--hosts``, at its start and at each restart."""

from contextlib import ExitStack
from dataclasses import dataclass, replace

from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Places
from ooodist.launcher.host import Host, each_once
from ooodist.launcher.ssh.listed import Listed, count_slots, first_workers
from ooodist.launcher.ssh.preflight import Way, meet, own_address


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    Attributes:
        hosts: all that may be used.
        workers: how many; None: as many as the hosts take.
        servers: hosts of BytePS's servers; empty: one beside the workers of each host.
        least: how many workers will do when hosts do not answer at a restart; None: all.
    """

    hosts: list[Listed]
    workers: int | None = None
    servers: tuple[Listed, ...] = ()
    least: int | None = None

    @property
    def number(self) -> int:
        """How many workers are wanted."""
        return count_slots(self.hosts) if self.workers is None else self.workers


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
    hosts = wanted.hosts if is_restart else first_workers(wanted.hosts, wanted.number)
    asked = {host.name: host for host in hosts}
    for server in wanted.servers:
        known = asked.get(server.name, replace(server, slots=0))
        asked[server.name] = replace(known, slots=known.slots + server.slots)
    found, out = meet(list(asked.values()), way, engine, command, cleaner, resources)
    workers: list[Host] = [
        found[host.name] for host in hosts if host.name in found for _ in range(host.slots)
    ]
    workers = workers[: wanted.number]
    missing = [server.name for server in wanted.servers if server.name not in found]
    least = wanted.number if not is_restart or wanted.least is None else wanted.least
    if len(workers) < least or missing:
        raise UserError(
            f"{'; '.join(out)}; {len(workers)} of {least} workers have a host: see that "
            "`ssh HOST true` works for each without a question, or leave the host out"
        )
    servers: list[Host] = [found[host.name] for host in wanted.servers for _ in range(host.slots)]
    own = Host(address=own_address(workers[0].address))
    return Places(workers, servers or each_once(workers), launcher=own), out
