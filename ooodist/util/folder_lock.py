"""Keeps a folder for one job: a second one would remove files that the first is writing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ooodist.errors import UserError

NAME = ".job.lock"
LOOK_SECONDS = 0.1
_TAKEN = (errno.EACCES, errno.EAGAIN)


@contextlib.contextmanager
def held(folder: Path, what: str, patience: float = 0.0) -> Iterator[None]:
    """Keeps other processes, of other hosts as well, from holding the folder in this block.

    The system gives up the lock when this process ends in any way. Where the file system knows no
    locks, nothing is kept.

    Args:
        folder: is made if it is missing.
        what: the name of the setting, for the error.
        patience: seconds to wait for a process that is about to end.

    Raises:
        UserError: another process holds it, which is named, or the folder cannot be written to.
    """
    path, deadline = folder / NAME, time.monotonic() + patience
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while (lock := _try(path)) is None:
            if time.monotonic() >= deadline:
                raise UserError(
                    f"{what} is {folder}, where another job writes ({_holder(path)}); give each "
                    "job a folder of its own, or end that one first"
                )
            time.sleep(LOOK_SECONDS)
    except OSError as error:
        raise UserError(
            f"{what} is {folder}, where nothing can be written ({error.strerror}); "
            "give a folder that can be written to, as --output DIR"
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # still locked: whoever waits sees that it is gone
        os.close(lock)


def _try(path: Path) -> int | None:
    """Locks the file and returns its descriptor; None if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Not flock: forked processes would keep that one.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            os.close(descriptor)
            return None
    try:
        is_there = os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        is_there = False
    if not is_there:  # its holder has ended and removed it: there may be a new one
        os.close(descriptor)
        return _try(path)
    os.ftruncate(descriptor, 0)
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T")}
    os.write(descriptor, json.dumps(about).encode())
    return descriptor


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        about = json.loads(path.read_text())
        return f"process {about['pid']} on {about['host']}, since {about['since']}"
    return f"it holds {path}"
