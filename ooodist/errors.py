"""The exception types for mistakes of users, and one-line summaries of other errors."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_FROM_OPERATION = re.compile(r"\{\{function_node [^}]*\}\} ?")
# Lines around a graph error's message, which trace where the operation was defined.
_DEFINED = re.compile(r"^(Graph execution error|Detected at node|<stack|  ).*\n?", re.MULTILINE)
_NODE = re.compile(
    r"\s*(\[\[\{\{node |\[Op:\w+\]|The op is created at:|Stack trace for op definition:).*",
    re.DOTALL,
)
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
# Files in a traceback that are not part of the user's program.
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python3", "<", str(Path(__file__).parent))


class UserError(Exception):
    """A request of the user cannot be carried out.

    The message is one paragraph that names the thing, its value, what is allowed, and
    the way out. Programs print it after ``ooodist: error:`` without a traceback and end
    with exit code 2.
    """


class SharedError(UserError):
    """A UserError that all ranks of a job raise together, with the same text; rank 0 prints it."""


class WorkerError(RuntimeError):
    """A function that ``ooodist.run`` calls has failed on a worker; its own error is the cause.

    Attributes:
        rank: the rank of the worker that failed first.
    """

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


def brief(error: BaseException) -> str:
    """Summarizes an error of foreign code in one line: its type, message and location.

    When TensorFlow calls a Python function (a generator of a data set, say) that fails, it puts the
    traceback into the text of its own error; the summary is of the function's error.
    """
    text = _FROM_OPERATION.sub("", str(getattr(error, "message", error))).strip()
    said, has_traceback, inner = text.partition("Traceback (most recent call last)")
    if said.startswith("Graph execution error"):
        said = _DEFINED.sub("", said)
    if has_traceback:
        frames = [(name, int(line)) for name, line in _FRAME.findall(inner)]
        said = said or inner.strip().splitlines()[-1]
    else:
        frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
        said = f"{type(error).__name__}: {said}"
    said = " ".join(_NODE.sub("", said).split())
    own = [frame for frame in frames if not any(part in frame[0] for part in _LIBRARIES)]
    if not own:
        return said
    name, line = own[-1]
    return f"{said} ({Path(name).name}, line {line})"
