"""Runs a rank of ``mpirun`` that ends with the process that started it, and with all its children.

``mpirun`` and its daemons leave their ranks running when they are killed. So a rank begins as
``python -m ooodist.launcher.ssh.leash COMMAND ...``: the kernel will kill it together with its
parent, and a cleaner, whose pipe the rank holds, kills what the rank has started.
"""

import ctypes
import os
import signal
import sys

from ooodist.launcher.cleaner import Cleaner
from ooodist.util.program import CRASH_CODE, print_error

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(command: list[str]) -> int:
    """Becomes the command; returns an exit code if that fails."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return CRASH_CODE  # it has died before
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    cleaner = Cleaner().__enter__()
    cleaner.add_own_group()
    os.set_inheritable(cleaner.fileno(), True)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print_error(f"cannot start {command[0]}: {error.strerror}")
    return CRASH_CODE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
