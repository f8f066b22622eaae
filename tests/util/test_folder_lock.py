"""A folder of one job, and what another one is told."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.util import folder_lock

HOLDER = """
import sys
from pathlib import Path
from ooodist.util import folder_lock
with folder_lock.held(Path(sys.argv[1]), "output"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_job(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the folder until its standard input ends."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def test_a_second_job_is_told_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    with another_job(folder) as first:
        who = f"process {first.pid} on {socket.gethostname()}"
        with pytest.raises(UserError, match=rf"^output is {folder}, where .*\({who}, since 2.*own"):
            folder_lock.held(folder, "output").__enter__()
        assert first.stdin is not None
        threading.Timer(0.3, first.stdin.close).start()
        with folder_lock.held(folder, "output", patience=20):  # it ends meanwhile
            assert [path.name for path in folder.iterdir()] == [folder_lock.NAME]
    assert not list(folder.iterdir())


def test_a_job_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    with another_job(tmp_path) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        with folder_lock.held(tmp_path, "output"):
            pass


def test_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = "output is .*/file, where nothing can be written .File exists."
    with pytest.raises(UserError, match=message):
        folder_lock.held(tmp_path / "file", "output").__enter__()
