"""Cleans up after one job, however its launcher ended, kill -9 included.

A launcher that is killed with SIGKILL can do nothing more, and asking the kernel to kill its
children (PR_SET_PDEATHSIG) covers neither what those have started nor files. So the launcher
starts one small helper process, this file run as a script, tells it through a pipe what to clean
up, and closes the pipe when it ends. If the launcher is killed, the kernel closes the pipe. Either
way the helper then kills the process groups, runs the commands, and removes files and folders.

The pipe carries one JSON line per item: ``["group", 1234]``, ``["forget", 1234]`` (that group),
``["folder", "/tmp/…"]``, ``["files", "/dev/shm/name_"]`` (all files whose paths begin like this),
``["command", ["program", "argument"]]`` (to be run once the groups are gone).

The helper may be killed as well; the launcher then starts another one, and tells it the same.
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
FOLDER_SECONDS = 5.0  # daemons of Open MPI outlive their ranks, and clear folders of their own


class Cleaner:
    """The launcher's end of the pipe: a context manager around the whole job."""

    def __enter__(self) -> Self:
        self._told: list[tuple[str, Any]] = []
        self._start()
        return self

    def _start(self) -> None:
        reader, self._pipe = os.pipe()
        # A session of its own, so that Ctrl-C in the terminal reaches only the launcher.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reader)

    def __exit__(self, *_: object) -> None:
        os.close(self._pipe)
        if self._process.wait() != 0:
            _clean_up(self._told)

    def look(self) -> bool:
        """Starts another helper if something has ended it; returns whether that was so."""
        if self._process.poll() is None:
            return False
        os.close(self._pipe)
        self._start()
        for kind, value in self._told:
            self._tell(kind, value)
        return True

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a process in a group of its own that is registered to be killed.

        Args:
            command: what it runs.
            options: more of ``subprocess.Popen``.
        """
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command, start_new_session=True, preexec_fn=self.add_own_group, **options
        )
        self._told.append(("group", process.pid))
        return process

    def fileno(self) -> int:
        """The pipe; the helper also waits for the end of any child that inherits it."""
        return self._pipe

    def add_own_group(self) -> None:
        """Registers the process group of the calling process to be killed.

        A child calls this between fork and exec, so that it never runs without the helper knowing.
        """
        self._tell("group", os.getpgrp())

    def forget_group(self, group: int) -> None:
        """Unregisters a group; to be called before its id can be reused for somebody else's."""
        self._told = [each for each in self._told if each != ("group", group)]
        self._tell("forget", group)

    def add_command(self, command: list[str]) -> None:
        """Registers a command to be run when the process groups are gone."""
        self._keep("command", command)

    def add_files(self, prefix: str) -> None:
        """Registers files to be removed: all whose absolute path begins with ``prefix``."""
        self._keep("files", prefix)

    def add_folder(self, folder: Path) -> None:
        """Registers a folder to be removed, with its content."""
        self._keep("folder", str(folder))

    def new_folder(self, parent: Path | None = None) -> Path:
        """Makes a temporary folder that is removed, with its content, after the job."""
        folder = (parent or Path(tempfile.gettempdir())) / f"ooodist-{secrets.token_hex(6)}"
        self.add_folder(folder)
        folder.mkdir(mode=0o700)
        return folder

    def _keep(self, kind: str, value: Any) -> None:
        self._told.append((kind, value))
        self._tell(kind, value)

    def _tell(self, kind: str, value: Any) -> None:
        with suppress(BrokenPipeError):  # the next helper will be told
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


def _remove_files(prefix: str) -> None:
    folder, name = os.path.split(prefix)
    for entry in os.listdir(folder):
        if entry.startswith(name):
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(os.path.join(folder, entry))


def _remove_folder(folder: str) -> None:
    # Others may remove files there at the same time, or add some: until it is gone.
    deadline = time.monotonic() + FOLDER_SECONDS
    while os.path.lexists(folder):
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            sys.stderr.write(f"ooodist: warning: {folder} cannot be removed\n")
            return
        time.sleep(0.01)


def _clean_up(told: list[tuple[str, Any]]) -> None:
    """Does what ``told`` asks for: first groups, then commands, files and folders."""

    def of(kind: str) -> list[Any]:
        return [value for its_kind, value in told if its_kind == kind]

    kill_groups(set(of("group")))
    for command in of("command"):
        subprocess.run(command, check=False)
    for prefix in of("files"):
        _remove_files(prefix)
    for folder in of("folder"):
        _remove_folder(folder)


def main() -> None:
    """Reads until the launcher is gone, then cleans up."""
    # Signals that end a whole service also end the launcher; the helper must outlive it.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    told: list[tuple[str, Any]] = []
    for line in sys.stdin:
        kind, value = json.loads(line)
        if kind == "forget":
            told = [each for each in told if each != ("group", value)]
        else:
            told.append((kind, value))
    _clean_up(told)


if __name__ == "__main__":
    main()
