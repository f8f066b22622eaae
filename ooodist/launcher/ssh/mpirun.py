"""Starts the workers of a job by ``mpirun`` of Open MPI, on this machine or over ssh.

``mpirun`` itself reaches the hosts, starts the ranks, joins them, and ends all when one fails. The
launcher gives it names, variables and ssh, takes its output apart, and has a runner for each rank
(``runner.py``), so that all ends with it.
"""

import json
import math
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ooodist.engines.heartbeat import heartbeat_seconds
from ooodist.engines.kinds import launched_as
from ooodist.errors import UserError
from ooodist.launcher.environment import OUTPUT, Process
from ooodist.launcher.host import Host
from ooodist.launcher.ssh.host import SshHost, passed_on
from ooodist.launcher.ssh.preflight import Way, ssh_options
from ooodist.launcher.ssh.runner import SHARED_MEMORY

SHARED_BYTES = 8 << 20  # of a rank; a segment has somewhat more than 4 MiB, and is never full
# What --tag-output puts in front of a line: job, rank, stream.
_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err)>:")


def process(
    engine: str, command: list[str], workers: Sequence[Host], way: Way, folder: Path
) -> Process:
    """The process that starts all workers.

    Args:
        engine: a way to start a kind of engine (``Kind.by_mpirun``).
        command: what each worker runs.
        workers: the host of each.
        way: how to reach the hosts.
        folder: a temporary folder of this machine.

    Raises:
        UserError: there is no ``mpirun``.
    """
    if shutil.which("mpirun") is None:
        raise UserError(
            f"--engine {engine}: there is no mpirun on PATH; run ooodist-engines mpi, or apt-get "
            "install openmpi-bin"
        )
    names = Counter(host.name or "localhost" for host in workers)
    # Its ranks write to terminals, so Python writes line by line; in pieces, lines would mix.
    kind = launched_as(engine)
    own = {"OOODIST_ENGINE": kind.name, **kind.by_mpirun[engine]}
    variables = own | {"PYTHONUNBUFFERED": ""}
    keepers = json.dumps(
        {host.facts.own_name: host.facts.folder for host in workers if isinstance(host, SshHost)}
    )
    given = passed_on(os.environ) | OUTPUT | variables
    # From its SIGTERM to its SIGKILL, in seconds. Ranks may save on a signal of the launcher, not
    # of mpirun, which waits for so long, twice, even if all have ended.
    options = {"odls_base_sigkill_timeout": "0"}
    is_here = keepers == "{}"
    if is_here:
        options["plm"] = "isolated"  # else it fails where there is no ssh
    else:
        options |= {
            "plm_rsh_agent": shlex.join([*way.ssh, *ssh_options()]),
            "plm_rsh_no_tree_spawn": "1",  # hosts need not reach each other by ssh
        }
        # A host that is gone is noticed as by ssh: 3 + 3 sixths of the limit.
        sixth = math.ceil(heartbeat_seconds(os.environ) / 6)
        keep_alive = {"time": 3 * sixth, "intvl": sixth, "probes": 3}  # seconds, number
        options |= {f"oob_tcp_keepalive_{name}": str(each) for name, each in keep_alive.items()}
    if any(not isinstance(host, SshHost) for host in workers):
        _check_shared_memory(len(workers))
    start = [
        "mpirun",
        # It refuses root otherwise, which a container usually is; horovodrun has the same.
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *("-np", str(len(workers)), "-H", ",".join(f"{name}:{names[name]}" for name in names)),
        # As horovodrun has it: TensorFlow's threads may use all cores.
        *("--bind-to", "none", "--map-by", "slot", "--tag-output", "--wdir", str(way.folder)),
        *(word for name, value in options.items() for word in ("--mca", name, value)),
    ]
    # On other hosts ranks do not inherit the environment of mpirun.
    export = [word for name in sorted(given) for word in ("-x", name)] if not is_here else []
    return Process(
        "mpirun",
        [*start, *export, way.python, "-m", "ooodist.launcher.ssh.runner", keepers, *command],
        variables | {"TMPDIR": str(folder)},
        is_worker=True,
        program=[*start, *command],
        ranks=len(workers),
    )


def starts(engine: str) -> bool:
    """Whether ``mpirun`` starts the engine of this name."""
    return engine in launched_as(engine).by_mpirun


def _check_shared_memory(ranks: int) -> None:
    """Raises UserError if Open MPI will find too little of it on this machine."""
    if set(SHARED_MEMORY) & set(os.environ) or "OMPI_MCA_btl" in os.environ:
        return
    with suppress(OSError):  # there is none: Open MPI does without
        free = shutil.disk_usage("/dev/shm").free
        if free < ranks * SHARED_BYTES:
            raise UserError(
                f"/dev/shm has {free / 2**20:.1f} MiB free, and {ranks} ranks of mpirun need "
                f"{ranks * SHARED_BYTES >> 20} MiB: make it larger (docker run --shm-size=1g), or "
                "set OMPI_MCA_btl=self,tcp, which does without and is slower"
            )


def rank_of(line: bytes) -> tuple[str | None, bytes]:
    """The label of the worker that wrote a line, and the line without its tag."""
    if tag := _TAG.match(line):
        # A line that was written in pieces has a tag before each.
        return tag[1].decode(), line.replace(tag[0], b"")
    return None, line
