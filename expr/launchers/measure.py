"""What ``mpirun`` alone and ooodist's launcher do when something on three hosts breaks.

The hosts are those of an emulated network, each with an sshd. Needs root, sshd and Open MPI. Prints
a row for each fault, and what is still running when it is over.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # for tests and expr/lab, which are not installed

from tests.launcher.ssh.hosts import SshHosts, on, ssh_hosts  # noqa: E402

NUMBER = 3
MOST_SECONDS = 60.0
MARK = f"OOODIST_MEASURE_MARK={uuid.uuid4().hex}"
WAYS = ("mpirun", "ooodist, collective", "ooodist, mpi")
# Ranks with a child each. The other ones save for 2.5 s when they are told to end.
FAMILY = "echo $$; sleep 600 & exec sleep 601"
SAVING = "trap 'sleep 2.5; echo saved; exit 0' TERM; echo $$; while :; do sleep 0.1; done"


def start(hosts: SshHosts, way: str, script: str) -> subprocess.Popen[str]:
    """Starts a rank of ``sh`` on each host."""
    names = ",".join(hosts.names[:NUMBER])
    if way == "mpirun":
        command = [*("mpirun", "--allow-run-as-root", "--tag-output", "--bind-to", "none")]
        command += ["-np", str(NUMBER), "-H", names, "--mca", "plm_rsh_agent", hosts.ssh]
        command += ["-x", MARK.partition("=")[0]]
    else:
        command = [sys.executable, "-m", "ooodist.launch", "--engine", way.split()[1]]
        command += ["--hosts", names, "--ssh", hosts.ssh, "--"]
    name, value = MARK.split("=")
    return subprocess.Popen(
        [*on(hosts.hosts[0]), *command, "sh", "-c", script],
        env=os.environ | {name: value, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def ranks(starter: subprocess.Popen[str]) -> dict[int, int]:
    """The process id of each rank, which is the first that it prints."""
    assert starter.stdout
    lines = [re.search(r"(\d+)\D+?(\d+)$", starter.stdout.readline()) for _ in range(NUMBER)]
    return {int(line[1]): int(line[2]) for line in lines if line}


def left() -> dict[int, str]:
    """The ranks and children that are still running."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command.startswith("sleep 60"):
                    found[int(folder.name)] = command.strip()
        except OSError:  # it has just ended
            continue
    return found


def ended(starter: subprocess.Popen[str], limit: float = MOST_SECONDS) -> str:
    """After how long it has ended, and with which code."""
    began = time.monotonic()
    try:
        code = starter.wait(limit)
    except subprocess.TimeoutExpired:
        return f"not within {limit:g} s"
    return f"{time.monotonic() - began:.1f} s, code {code}"


def killed(starter: subprocess.Popen[str], _: SshHosts) -> str:
    """``kill -9`` of a rank."""
    os.kill(ranks(starter)[2], signal.SIGKILL)
    return ended(starter)


def stopped(starter: subprocess.Popen[str], _: SshHosts) -> str:
    """SIGSTOP of a rank."""
    os.kill(ranks(starter)[1], signal.SIGSTOP)
    return ended(starter)


def starter_killed(starter: subprocess.Popen[str], _: SshHosts) -> str:
    """``kill -9`` of what has started the ranks."""
    ranks(starter)
    starter.kill()
    began = time.monotonic()
    while left() and time.monotonic() - began < MOST_SECONDS:
        time.sleep(0.05)
    return f"not within {MOST_SECONDS:g} s" if left() else f"{time.monotonic() - began:.1f} s"


def terminated(starter: subprocess.Popen[str], _: SshHosts) -> str:
    """SIGTERM to it, while ranks need 2.5 s to save."""
    ranks(starter)
    starter.terminate()
    end = ended(starter)
    assert starter.stdout
    return f"{end}, {starter.stdout.read().count('saved')} of {NUMBER} saved"


def link_down(starter: subprocess.Popen[str], hosts: SshHosts) -> str:
    """The link of a host goes down."""
    ranks(starter)
    link = ["ip", "-n", hosts.hosts[1].namespace, "link", "set", "eth0"]
    subprocess.run([*link, "down"], check=True)
    try:
        return ended(starter)
    finally:
        subprocess.run([*link, "up"], check=True)


FAULTS: dict[Callable[[subprocess.Popen[str], SshHosts], str], str] = {
    killed: FAMILY,
    stopped: FAMILY,
    starter_killed: FAMILY,
    terminated: SAVING,
    link_down: FAMILY,
}


def cell(way: str, fault: Callable[[subprocess.Popen[str], SshHosts], str]) -> str:
    """What happens with a way to start ranks; all of it is removed."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        ssh_hosts(NUMBER, Path(folder)) as hosts,
    ):
        starter = start(hosts, way, FAULTS[fault])
        result = fault(starter, hosts)
        time.sleep(1)
        rest = ", ".join(sorted(left().values()))
        starter.kill()
        return f"{result}; left: {rest}" if rest else result


def main() -> None:
    """Prints the table."""
    print(f"| fault | {' | '.join(WAYS)} |\n|---{'|---' * len(WAYS)}|")
    for fault in FAULTS:
        cells = [cell(way, fault) for way in WAYS]
        print(f"| {(fault.__doc__ or '').rstrip('.')} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
