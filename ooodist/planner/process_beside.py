"""Runs work in a separate process, so that training continues meanwhile.

    python -m MODULE FOLDER

The module reads ``request.yaml`` in the folder and writes ``answer.yaml``; if it exits with code 2,
the last line of stderr says why there is no answer. It ends when its stdin is closed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from ooodist.errors import UserError
from ooodist.util import yaml_dataclass
from ooodist.util.program import USER_ERROR_CODE

NICENESS = 19  # takes only CPU time that the training leaves
REQUEST, ANSWER, ERRORS = "request.yaml", "answer.yaml", "errors.txt"

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class ProcessBeside(Generic[Answer]):
    """Work that runs beside this process, and does not outlive it.

    Args:
        module: a module whose ``main`` calls :func:`answer`.
        request: a dataclass that describes the work.
        kind: the dataclass of the answer.
    """

    def __init__(self, module: str, request: Any, kind: type[Answer]) -> None:
        self._kind = kind
        self._folder = tempfile.TemporaryDirectory(prefix="ooodist-search-")
        folder = Path(self._folder.name)
        yaml_dataclass.write_file(request, folder / REQUEST)
        with (folder / ERRORS).open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def is_done(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def answer(self) -> Answer:
        """The answer of a process that has ended. Raises UserError if it failed."""
        folder = Path(self._folder.name)
        if self._process.returncode:
            lines = (folder / ERRORS).read_text(encoding="utf-8", errors="replace").split("\n")
            said = [line for line in lines if line]
            raise UserError(said[-1] if said else f"exit code {self._process.returncode}")
        return yaml_dataclass.read_file(self._kind, folder / ANSWER, "what the search found")

    def close(self) -> None:
        """Kills the process if it still runs, and removes its files."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


def answer(folder: Path, kind: type[Request], work: Callable[[Request], Any]) -> int:
    """Answers the request in the folder; returns the exit code. Called in the separate process.

    Args:
        folder: has the request, and gets the answer.
        kind: the dataclass of the request.
        work: makes the answer, a dataclass, from the request. May raise UserError.
    """
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # a launcher may have bound its parent to a core
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    request = yaml_dataclass.read_file(kind, folder / REQUEST, "the request")
    try:
        found = work(request)
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR_CODE
    yaml_dataclass.write_file(found, folder / ANSWER)
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()  # returns when the other process ends
    os._exit(1)
