"""What travels between a program and the workers that run a function of it: pickles in a folder.

Only this user can read or write the folder (mode 0700) and the files in it (0600). A pickle runs
code when it is read, so a worker refuses a folder that others can reach.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle  # also takes functions of a notebook or of ``__main__``

from ooodist.errors import UserError, brief

CALL = "call.pickle"


@dataclass(frozen=True)
class Outcome:
    """How the function has ended on a rank.

    Attributes:
        result: what it has returned; None if it failed.
        failure: what it has raised, in one line; None if it returned.
        trace: the traceback of that.
        error: the exception; None if it cannot travel.
        when: seconds since the epoch, by the clock of its host.
    """

    result: Any = None
    failure: str | None = None
    trace: str = ""
    error: Exception | None = None
    when: float = 0.0


def failed(error: Exception, when: float) -> Outcome:
    """The outcome for an exception, which travels with it if it can."""
    trace = "".join(traceback.format_exception(error))
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # its class decides what fails
        return Outcome(failure=brief(error), trace=trace, when=when)
    return Outcome(failure=brief(error), trace=trace, error=error, when=when)


def write(file: Path, content: Any) -> None:
    """Writes a file that only this user can read; raises whatever cannot be pickled raises."""
    data = cloudpickle.dumps(content)
    part = file.with_suffix(".part")  # a rank may be ended while it writes
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)
    part.replace(file)


def read(file: Path) -> Any:
    """Reads a file that :func:`write` has written. Raises UserError if others can reach it."""
    folder = file.parent.stat()
    if folder.st_uid != os.getuid() or folder.st_mode & 0o077:
        raise UserError(
            f"{file.parent} is open to other users, and what is read from it is run; keep what "
            "ooodist.run writes there private (mode 0700)"
        )
    return cloudpickle.loads(file.read_bytes())


def outcome_file(call: Path, rank: int) -> Path:
    """The file in which a rank leaves its outcome, beside that of the call."""
    return call.with_name(f"rank-{rank}.pickle")
