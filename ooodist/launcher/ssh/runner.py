"""Runs one process of a job on its host, for a launcher that may be on another.

``python -m ooodist.launcher.ssh.runner`` gets :class:`Orders` as one line of JSON through its
standard input, which ssh connects with the launcher; so neither command lines nor process lists
show what is in the environment. More lines are numbers of signals for the process. When standard
input ends, the launcher is gone or cannot be reached: the process is killed, and all that it has
started. A cleaner does the same if this runner is killed. A process that was stopped is killed, too
(``stopped.py``).
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.ssh.stopped import message, wait_until_stopped
from ooodist.util.program import CRASH_CODE, print_error


@dataclass(frozen=True)
class Orders:
    """What to run.

    Attributes:
        command: the program and its arguments.
        environment: variables besides those of the host.
        folder: the keeper's folder, which it does not remove before this runner ends.
        folders: made before.
    """

    command: list[str]
    environment: dict[str, str]
    folder: str
    folders: list[str]


def run(orders: Orders) -> int:
    """Runs the process to its end; returns its exit code, 128 + n if signal n ended it."""
    fcntl.flock(os.open(orders.folder, os.O_RDONLY), fcntl.LOCK_SH)
    for folder in orders.folders:
        Path(folder).mkdir(mode=0o700, exist_ok=True)
    with Cleaner() as cleaner:
        try:
            process = cleaner.popen(
                orders.command,
                env=os.environ | orders.environment,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            print_error(f"cannot start {orders.command[0]}: {error.strerror}")
            return CRASH_CODE
        for task in (_pass_on_signals, _kill_if_stopped):
            threading.Thread(target=task, args=[process.pid], daemon=True).start()
        # It stays a zombie, so that its id is nobody else's while the cleaner kills its group.
        end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
    process.wait()
    return end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status


def _pass_on_signals(group: int) -> None:
    """Sends the group what the launcher says, and kills it when the launcher is gone."""
    for line in sys.stdin:
        with suppress(ProcessLookupError, ValueError):
            os.killpg(group, int(line))
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _kill_if_stopped(group: int) -> None:
    wait_until_stopped(group)
    print_error(message(f"the process on {socket.gethostname()}", group))
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def main() -> int:
    """Runs what the first line of standard input says."""
    orders = sys.stdin.readline()
    if not orders:
        return CRASH_CODE  # the launcher is gone already
    return run(Orders(**json.loads(orders)))


if __name__ == "__main__":
    sys.exit(main())
