"""Runs one process of a job for a launcher that is not its parent, as one on another host.

Over ssh, ``python -m ooodist.launcher.ssh.runner`` gets :class:`Orders` as one line of JSON through
its standard input, which ssh connects with the launcher; so neither command lines nor process lists
show what is in the environment. More lines are numbers of signals for the process. When standard
input ends, the launcher is gone or cannot be reached.

As a rank of ``mpirun``, it is ``python -m ooodist.launcher.ssh.runner KEEPERS COMMAND ...``, where
KEEPERS is a JSON object with the keeper's folder for each host name. The launcher is gone when this
runner's parent ends, or when the keeper has lost it: a killed ``mpirun`` leaves its daemons on
other hosts.

Then the process is killed, and all that it has started. A cleaner does the same if this runner is
killed. A process that was stopped is killed, too (``stopped.py``).
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.ssh.stopped import message, wait_until_stopped
from ooodist.util.program import CRASH_CODE, print_error

ALIVE = "alive"  # a file in the keeper's folder, locked while the launcher is there
SAVE = signal.SIGUSR1  # which mpirun passes on to its ranks; after SIGTERM it kills them at once
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Where Open MPI 4 and 5 put it; a rank tells the others the path of its own.
SHARED_MEMORY = (
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_btl_sm_backing_directory",
)


@dataclass(frozen=True)
class Orders:
    """What to run.

    Attributes:
        command: the program and its arguments.
        environment: variables besides those of the host.
        folder: the keeper's folder, which it does not remove before this runner ends; "": none.
        folders: made before.
    """

    command: list[str]
    environment: dict[str, str]
    folder: str
    folders: list[str]


def run(orders: Orders, rank: str | None = None) -> int:
    """Runs the process to its end; returns its code, -n if signal n ended it.

    Args:
        orders: what to run.
        rank: its rank if ``mpirun`` has started this runner.
    """
    if orders.folder:
        fcntl.flock(os.open(orders.folder, os.O_RDONLY), fcntl.LOCK_SH)
    for folder in orders.folders:
        Path(folder).mkdir(mode=0o700, exist_ok=True)
    with Cleaner() as cleaner:
        own = orders.environment if rank is None else _shared_memory(cleaner)
        # Not a handler, which would wait for the end of waitid if a signal came just before.
        wakeups, writer = os.pipe()
        if rank is not None:
            os.set_blocking(writer, False)
            signal.set_wakeup_fd(writer)
            signal.signal(SAVE, lambda *_: None)
        try:
            process = cleaner.popen(orders.command, env=os.environ | own, stdin=subprocess.DEVNULL)
        except OSError as error:
            print_error(f"cannot start {orders.command[0]}: {error.strerror}")
            return CRASH_CODE
        name = "the process" if rank is None else f"rank {rank}"
        _in_thread(_kill_if_stopped, process.pid, f"{name} on {socket.gethostname()}")
        if rank is None:
            _in_thread(_pass_on_signals, process.pid)
        else:
            _in_thread(_let_save, process.pid, wakeups)
            if orders.folder:
                _in_thread(_end_with_keeper, Path(orders.folder), os.getppid())
        # It stays a zombie, so that its id is nobody else's while the cleaner kills its group.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process.wait()


def _in_thread(task: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=task, args=arguments, daemon=True).start()


def _kill_if_stopped(group: int, name: str) -> None:
    wait_until_stopped(group)
    print_error(message(name, group))
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _pass_on_signals(group: int) -> None:
    """Sends the group what the launcher says, and kills it when the launcher is gone."""
    for line in sys.stdin:
        with suppress(ProcessLookupError, ValueError):
            os.killpg(group, int(line))
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _let_save(group: int, wakeups: int) -> None:
    """Sends the group SIGTERM when SAVE comes to this process."""
    while os.read(wakeups, 1)[0] != SAVE:
        pass
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)


def _end_with_keeper(folder: Path, daemon: int) -> None:
    """Waits until the keeper gives up its lock, and ends this runner and what has started it."""
    with suppress(FileNotFoundError):  # the keeper has cleaned up
        fcntl.flock(os.open(folder / ALIVE, os.O_RDONLY), fcntl.LOCK_SH)
    with suppress(ProcessLookupError):
        os.kill(daemon, signal.SIGKILL)  # SIGTERM does not end it when mpirun is gone
    os.kill(os.getpid(), signal.SIGKILL)


def _shared_memory(cleaner: Cleaner) -> dict[str, str]:
    """Has Open MPI put its shared memory, which a killed rank leaves, where it is removed."""
    if not set(SHARED_MEMORY) & set(os.environ):
        with suppress(OSError):  # there is none to write to
            return dict.fromkeys(SHARED_MEMORY, str(cleaner.new_folder(Path("/dev/shm"))))
    return {}


def _run_rank(keepers: Mapping[str, str], command: list[str]) -> int:
    """Runs a rank of ``mpirun``, and ends as it does."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return CRASH_CODE  # it has died before
    orders = Orders(command, {}, keepers.get(socket.gethostname(), ""), [])
    code = run(orders, os.environ.get("OMPI_COMM_WORLD_RANK", "?"))
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def main(arguments: list[str]) -> int:
    """Runs what the arguments say, else the first line of standard input."""
    if arguments:
        return _run_rank(json.loads(arguments[0]), arguments[1:])
    orders = sys.stdin.readline()
    if not orders:
        return CRASH_CODE  # the launcher is gone already
    code = run(Orders(**json.loads(orders)))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
