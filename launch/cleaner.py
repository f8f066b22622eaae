"""Clears up after one job, however its launcher ended: kill -9 included.

A launcher that is killed with SIGKILL can do nothing more, and asking the kernel to kill its
children (PR_SET_PDEATHSIG) reaches neither what those have started nor files. So the launcher
starts one small helper process, this file run as a script, tells it through a pipe what to clear,
and closes the pipe when it ends. The kernel closes the pipe if the launcher is killed. Either way
the helper then kills the process groups and after that removes the folders and files.

What goes through the pipe is one JSON line an item: ``["group", 1234]``,
``["folder", "/tmp/…"]``, ``["files", "/dev/shm/name_"]`` (every file whose path begins so).
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

GROUP_END_SECONDS = 2.0  # a killed process is gone at once, unless the kernel is busy for it


class Cleaner:
    """The launcher's end of the pipe: a context manager around the whole job."""

    def __enter__(self) -> Self:
        reader, self._pipe = os.pipe()
        # A session of its own: Ctrl-C in the terminal is for the launcher alone.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reader)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._pipe)
        self._process.wait()

    def add_own_group(self) -> None:
        """Has the process group of the calling process killed.

        A child calls it between fork and exec. So there is no moment in which it runs and the
        helper does not know of it.
        """
        self._tell("group", os.getpgrp())

    def add_files(self, prefix: str) -> None:
        """Has the files removed whose absolute path begins with ``prefix``."""
        self._tell("files", prefix)

    def new_folder(self) -> Path:
        """Makes a temporary folder that is removed, with what is in it, after the job."""
        folder = Path(tempfile.gettempdir()) / f"ooodist-{secrets.token_hex(6)}"
        self._tell("folder", str(folder))
        folder.mkdir(mode=0o700)
        return folder

    def _tell(self, kind: str, value: str | int) -> None:
        os.write(self._pipe, json.dumps([kind, value]).encode() + b"\n")


def _kill(groups: set[int]) -> None:
    """Kills the groups and waits until their processes, which could still write, are gone."""
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):  # nobody's, or by now a stranger's
            os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + GROUP_END_SECONDS
    while _are_running(groups) and time.monotonic() < deadline:
        time.sleep(0.01)


def _are_running(groups: set[int]) -> bool:
    # Looked up in /proc and not by signal 0, which finds zombies: what a worker has started is
    # collected by process 1 of the machine or container, in its own time, if at all.
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            after_name = file.read_bytes().rpartition(b")")[2]
            state, _, group = after_name.split()[:3]
            if int(group) in groups and state not in (b"Z", b"X"):
                return True
    return False


def _remove_files(prefix: str) -> None:
    folder, name = os.path.split(prefix)
    for entry in os.listdir(folder):
        if entry.startswith(name):
            os.unlink(os.path.join(folder, entry))


def main() -> None:
    """Reads until the launcher is gone, then clears."""
    # Whoever ends a whole service by signal ends the launcher too, and this comes after it.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    items: dict[str, list[Any]] = {"group": [], "folder": [], "files": []}
    for line in sys.stdin:
        kind, value = json.loads(line)
        items[kind].append(value)
    _kill(set(items["group"]))
    for prefix in items["files"]:
        _remove_files(prefix)
    for folder in items["folder"]:
        if os.path.exists(folder):
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
