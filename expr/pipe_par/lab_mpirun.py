"""Starting a worker of these experiments with mpirun on the hosts of an emulated network.

::

    host0   mpirun, ranks 0 and 1          agent.sh host1 orted ...
    host1   orted, ranks 2 and 3           = ip netns exec ...-host1 ... orted ...

mpirun reaches other hosts through a program that runs a command there, by default ssh. Here it is a
script that enters the host's network.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for expr/lab, which is not installed

from mpirun import command, environment

from expr.lab.network import Lab
from ooodist.launcher.host import Host


def agent(hosts: list[Host]) -> str:
    """The script, which is called with the name of a host and the words of a shell command."""
    lines = ["#!/bin/sh", "host=$1", "shift", 'case "$host" in']
    for host in hosts:
        lines.append(f'{host.name}) exec {shlex.join(host.wrap(["sh", "-c"]))} "$*" ;;')
    return "\n".join([*lines, "esac", 'echo "no host $host" >&2', "exit 1", ""])


def run(
    lab: Lab,
    a_host: int,
    folder: Path,
    worker: str,
    *arguments: object,
    more: Mapping[str, str] | None = None,
) -> None:
    """Runs a worker on all hosts, to its end. Raises CalledProcessError.

    Args:
        lab: the network.
        a_host: ranks on each host; those of a host follow each other.
        folder: gets the script.
        worker: name of a script of this folder.
        arguments: of the worker.
        more: environment variables.
    """
    script = folder / "agent.sh"
    script.write_text(agent(lab.hosts))
    script.chmod(0o755)
    variables = {
        "OMPI_MCA_plm_rsh_agent": str(script),
        # Of messages between hosts, and of mpirun's own: loopback networks look alike on all hosts.
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,vader,tcp",
        "OMPI_MCA_btl_tcp_if_include": lab.hosts[0].interface,
        "OMPI_MCA_oob_tcp_if_include": lab.hosts[0].interface,
    }
    hosts = ",".join(f"{host.name}:{a_host}" for host in lab.hosts)
    mpirun, *rest = command(a_host * len(lab.hosts), worker, *arguments)
    subprocess.run(
        lab.hosts[0].wrap([mpirun, "--host", hosts, *rest]),
        env=environment({**variables, **(more or {})}),
        check=True,
    )
