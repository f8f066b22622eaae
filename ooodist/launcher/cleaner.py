"""Cleans up after one job, however its launcher ended, kill -9 included.

A launcher that is killed with SIGKILL can do nothing more, and asking the kernel to kill its
children (PR_SET_PDEATHSIG) covers neither what those have started nor files. So the launcher
starts one small helper process, this file run as a script, tells it through a pipe what to clean
up, and closes the pipe when it ends. If the launcher is killed, the kernel closes the pipe. Either
way the helper then kills the process groups, and then removes the networks, folders and files.

The pipe carries one JSON line per item: ``["group", 1234]``, ``["forget", 1234]`` (that group),
``["folder", "/tmp/…"]``, ``["files", "/dev/shm/name_"]`` (all files whose paths begin like this),
``["namespace", "name"]`` (of a network, with its processes and interfaces).
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

GROUP_END_SECONDS = 2.0  # a killed process is gone at once, unless it is busy in the kernel


class Cleaner:
    """The launcher's end of the pipe: a context manager around the whole job."""

    def __enter__(self) -> Self:
        reader, self._pipe = os.pipe()
        # A session of its own, so that Ctrl-C in the terminal reaches only the launcher.
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
        """Returns the pipe; the helper also waits for the end of any child that inherits it."""
        return self._pipe

    def add_own_group(self) -> None:
        """Registers the process group of the calling process to be killed.

        A child calls this between fork and exec, so that it never runs without the helper knowing.
        """
        self._tell("group", os.getpgrp())

    def forget_group(self, group: int) -> None:
        """Unregisters a group; to be called before its id can be reused for somebody else's."""
        self._tell("forget", group)

    def add_namespace(self, name: str) -> None:
        """Registers a network namespace of ``ip netns`` to be removed, with its processes."""
        self._tell("namespace", name)

    def add_files(self, prefix: str) -> None:
        """Registers files to be removed: all whose absolute path begins with ``prefix``."""
        self._tell("files", prefix)

    def add_folder(self, folder: Path) -> None:
        """Registers a folder to be removed, with its content."""
        self._tell("folder", str(folder))

    def new_folder(self) -> Path:
        """Makes a temporary folder that is removed, with its content, after the job."""
        folder = Path(tempfile.gettempdir()) / f"ooodist-{secrets.token_hex(6)}"
        self.add_folder(folder)
        folder.mkdir(mode=0o700)
        return folder

    def _tell(self, kind: str, value: str | int) -> None:
        os.write(self._pipe, json.dumps([kind, value]).encode() + b"\n")


def kill_groups(groups: set[int]) -> None:
    """Kills the groups and waits until their processes, which could still write, are gone."""
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):  # gone, or reused by somebody else
            os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + GROUP_END_SECONDS
    while _are_running(groups) and time.monotonic() < deadline:
        time.sleep(0.01)


def _are_running(groups: set[int]) -> bool:
    # Found in /proc rather than by signal 0, which also finds zombies: what a worker has started
    # is reaped by process 1 of the machine or container, in its own time, if at all.
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            after_name = file.read_bytes().rpartition(b")")[2]
            state, _, group = after_name.split()[:3]
            if int(group) in groups and state not in (b"Z", b"X"):
                return True
    return False


def _remove_namespace(name: str) -> None:
    """Kills processes in the network that have left the groups, and removes the network."""
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
    """Reads until the launcher is gone, then cleans up."""
    # Signals that end a whole service also end the launcher; the helper must outlive it.
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
