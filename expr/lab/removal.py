"""Removes a network namespace of ``ip netns``, with its interfaces and the processes in it.

    removal.py NAME

The cleaner of a network runs this file as a script, with nothing but Python's own modules.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MOST_SECONDS = 2.0  # a killed process is gone at once, unless it is busy in the kernel


def remove(name: str) -> None:
    """Kills the processes in the namespace, also those in groups of their own, and removes it."""
    if not Path("/run/netns", name).exists():
        return
    deadline = time.monotonic() + MOST_SECONDS
    while inside := _ip("pids", name).split():
        for process in inside:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    _ip("delete", name)


def _ip(command: str, name: str) -> str:
    done = subprocess.run(
        ["ip", "netns", command, name], stdout=subprocess.PIPE, text=True, check=False
    )
    return done.stdout


if __name__ == "__main__":
    remove(sys.argv[1])
