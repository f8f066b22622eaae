"""Which ranks of ``mpirun`` run on a host, so that the host's keeper can send them a signal.

``mpirun`` itself, when it gets SIGTERM, leaves its ranks no time. Each rank has a file, named after
its process, which is locked for as long as the rank or what it has started lives.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_PREFIX = "rank-"


def enlist(folder: Path) -> None:
    """Lists the calling process; what it becomes by ``exec`` stays listed."""
    descriptor = os.open(folder / f"{_PREFIX}{os.getpid()}", os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.set_inheritable(descriptor, True)


def signal_all(folder: Path, number: int) -> None:
    """Sends a signal to all that are listed and alive."""
    for path in folder.glob(f"{_PREFIX}*"):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(ProcessLookupError):
                os.kill(int(path.name.removeprefix(_PREFIX)), number)
        finally:
            os.close(descriptor)
