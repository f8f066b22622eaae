"""Runs a rank of ``mpirun`` that ends with the process that started it, and with all its children.

A killed ``mpirun`` leaves its daemons on other hosts, and these their ranks. So a rank begins as
``python -m ooodist.launcher.ssh.leash KEEPERS COMMAND ...``, where KEEPERS is a JSON object with
the keeper's folder for each host name. The kernel kills the rank together with its parent. A
watcher ends both when the keeper has lost the launcher, and another the rank when it was stopped
(``stopped.py``). And a cleaner, whose pipe the rank holds, kills what the rank has started.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.ssh import ranks
from ooodist.launcher.ssh.keeper import ALIVE
from ooodist.launcher.ssh.stopped import message, wait_until_stopped
from ooodist.util.program import CRASH_CODE, print_error

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Where Open MPI 4 and 5 put it; a rank tells the others the path of its own.
SHARED_MEMORY = (
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_btl_sm_backing_directory",
)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(CRASH_CODE)  # it has died before


def _watch(folder: Path, rank: int, daemon: int) -> None:
    """Waits in a process of its own until the keeper gives up its lock, and ends both."""
    if os.fork():
        return
    _die_with(rank)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # mpirun waits until nobody has a rank's output open
        os.dup2(nothing, descriptor)
    with suppress(FileNotFoundError):  # the keeper has cleaned up
        fcntl.flock(os.open(folder / ALIVE, os.O_RDONLY), fcntl.LOCK_SH)
    with suppress(ProcessLookupError):
        os.kill(daemon, signal.SIGKILL)  # SIGTERM does not end it when mpirun is gone
    os.kill(rank, signal.SIGKILL)
    os._exit(0)


def _kill_if_stopped(rank: int) -> None:
    """Waits in a process of its own until the rank was stopped for long, and kills it."""
    if os.fork():
        return
    _die_with(rank)
    wait_until_stopped(rank)
    number = os.environ.get("OMPI_COMM_WORLD_RANK", "?")
    print_error(message(f"rank {number} on {socket.gethostname()}", rank))
    with suppress(ProcessLookupError):
        os.kill(rank, signal.SIGKILL)
    os._exit(0)


def _move_shared_memory(cleaner: Cleaner) -> None:
    """Has Open MPI put its shared memory, which a killed rank leaves, where it is removed."""
    if set(SHARED_MEMORY) & set(os.environ):
        return
    with suppress(OSError):  # there is none to write to
        folder = cleaner.new_folder(Path("/dev/shm"))
        os.environ.update(dict.fromkeys(SHARED_MEMORY, str(folder)))


def main(keepers: str, command: list[str]) -> int:
    """Becomes the command; returns an exit code if that fails."""
    _die_with(os.getppid())
    folder = json.loads(keepers).get(socket.gethostname())
    if folder is not None:
        _watch(Path(folder), os.getpid(), os.getppid())
        ranks.enlist(Path(folder))
    _kill_if_stopped(os.getpid())
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    cleaner = Cleaner().__enter__()
    cleaner.add_own_group()
    _move_shared_memory(cleaner)
    os.set_inheritable(cleaner.fileno(), True)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print_error(f"cannot start {command[0]}: {error.strerror}")
    return CRASH_CODE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
