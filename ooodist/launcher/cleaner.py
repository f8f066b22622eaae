"""Clears up after one job, however its launcher ended: kill -9 included.

A launcher that is killed with SIGKILL can do nothing more, and asking the kernel to kill its
children (PR_SET_PDEATHSIG) reaches neither what those have started nor files. So the launcher
starts one small helper process, this file run as a script, tells it through a pipe what to clear,
and closes the pipe when it ends. The kernel closes the pipe if the launcher is killed. Either way
the helper then kills the process groups and after that removes the networks, folders and files.

What goes through the pipe is one JSON line an item: ``["group", 1234]``, ``["forget", 1234]`` (that
group), ``["folder", "/tmp/…"]``, ``["files", "/dev/shm/name_"]`` (every file whose path begins so),
``["namespace", "name"]`` (of a network: its processes too, and with it go its interfaces).
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

    def fileno(self) -> int:
        """The pipe. The helper waits for the end of a child that is handed it, too."""
        return self._pipe

    def add_own_group(self) -> None:
        """Has the process group of the calling process killed.

        A child calls it between fork and exec. So there is no moment in which it runs and the
        helper does not know of it.
        """
        self._tell("group", os.getpgrp())

    def forget_group(self, group: int) -> None:
        """Has the group left alone. Call it before the group's id can become somebody else's."""
        self._tell("forget", group)

    def add_namespace(self, name: str) -> None:
        """Has a network namespace of ``ip netns`` removed, and ended what runs in it."""
        self._tell("namespace", name)

    def add_files(self, prefix: str) -> None:
        """Has the files removed whose absolute path begins with ``prefix``."""
        self._tell("files", prefix)

    def add_folder(self, folder: Path) -> None:
        """Has a folder removed, with what is in it."""
        self._tell("folder", str(folder))

    def new_folder(self) -> Path:
        """Makes a temporary folder that is removed, with what is in it, after the job."""
        folder = Path(tempfile.gettempdir()) / f"ooodist-{secrets.token_hex(6)}"
        self.add_folder(folder)
        folder.mkdir(mode=0o700)
        return folder

    def _tell(self, kind: str, value: str | int) -> None:
        os.write(self._pipe, json.dumps([kind, value]).encode() + b"\n")


def kill_groups(groups: set[int]) -> None:
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


def _remove_namespace(name: str) -> None:
    """Kills what runs in the network and has left the groups, and removes the network."""
    if not Path("/run/netns", name).exists():
        return
    deadline = time.monotonic() + GROUP_END_SECONDS
    while inside := _ip("pids", name).split():
        for process in inside:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    _ip("delete", name)


def _ip(command: str, namespace: str) -> str:
    done = subprocess.run(
        ["ip", "netns", command, namespace], stdout=subprocess.PIPE, text=True, check=False
    )
    return done.stdout


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
    items: dict[str, list[Any]] = {"group": [], "folder": [], "files": [], "namespace": []}
    for line in sys.stdin:
        kind, value = json.loads(line)
        if kind == "forget":
            items["group"].remove(value)
        else:
            items[kind].append(value)
    kill_groups(set(items["group"]))
    for name in items["namespace"]:
        _remove_namespace(name)
    for prefix in items["files"]:
        _remove_files(prefix)
    for folder in items["folder"]:
        if os.path.exists(folder):
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
