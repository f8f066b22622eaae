"""The search as a process of its own, so that the one that trains goes on meanwhile.

    python -m ooodist.schedule.search_process FOLDER

It reads ``request.yaml`` in the folder and writes ``plans.yaml``; with the exit code 2, the last
line of stderr says why there are none. It ends when nobody holds its stdin open any more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from ooodist import yaml_dataclass
from ooodist.errors import UserError
from ooodist.schedule.costs import Network, StepCosts
from ooodist.schedule.plan import Plan
from ooodist.schedule.search import Limits, plans_to_try

NICENESS = 19  # it takes what the training leaves
USER_ERROR_CODE = 2
REQUEST, PLANS, ERRORS = "request.yaml", "plans.yaml", "errors.txt"


@dataclass(frozen=True)
class Request:
    """What is searched for: see :func:`ooodist.schedule.search.plans_to_try`."""

    costs: StepCosts
    network: Network
    limits: Limits


@dataclass(frozen=True)
class Found:
    """The plans, each with its prediction; the most promising one first."""

    plans: tuple[Plan, ...]


class SearchProcess:
    """A search that runs beside this process, and ends with it at the latest.

    Args:
        request: what is searched for.
    """

    def __init__(self, request: Request) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ooodist-search-")
        folder = Path(self._folder.name)
        text = yaml_dataclass.dump(yaml_dataclass.plain(request))
        (folder / REQUEST).write_text(text, encoding="utf-8")
        with (folder / ERRORS).open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def result(self) -> tuple[Plan, ...]:
        """What a search that has ended found. Raises UserError if it failed."""
        folder = Path(self._folder.name)
        if self._process.returncode:
            lines = (folder / ERRORS).read_text(encoding="utf-8", errors="replace").split("\n")
            said = [line for line in lines if line]
            raise UserError(said[-1] if said else f"exit code {self._process.returncode}")
        found: Found = yaml_dataclass.read_file(Found, folder / PLANS, "the plans of the search")
        return found.plans

    def close(self) -> None:
        """Ends it, if it has not ended, and removes its files."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


def main(folder: Path) -> int:
    """Answers the request in the folder; the exit code."""
    os.nice(NICENESS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    request: Request = yaml_dataclass.read_file(Request, folder / REQUEST, "the request")
    try:
        plans = plans_to_try(request.costs, request.network, limits=request.limits)
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR_CODE
    text = yaml_dataclass.dump(yaml_dataclass.plain(Found(tuple(plans))))
    (folder / PLANS).write_text(text, encoding="utf-8")
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()  # to the end, which comes when the other process ends
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
