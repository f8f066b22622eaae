"""Shows the progress of a search: on one line of a terminal, else as a new line now and then."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from ooodist.planner.progress import Progress, SearchState
from ooodist.util.quantity import counted

QUIET_SECONDS = 2.0  # nothing is shown of shorter searches
TERMINAL_SECONDS = 0.2  # between two updates on a terminal
LINE_SECONDS = 10.0  # and elsewhere


@contextlib.contextmanager
def search_line(stream: TextIO | None = None) -> Iterator[Progress]:
    """Yields a function that shows each state that it is called with.

    Args:
        stream: where to write; a terminal's line is overwritten, and cleared at the end. None for
            stderr.
    """
    out = sys.stderr if stream is None else stream
    on_terminal, start = out.isatty(), time.monotonic()
    between = TERMINAL_SECONDS if on_terminal else LINE_SECONDS
    first = due = QUIET_SECONDS if on_terminal else LINE_SECONDS  # from the start

    def show(state: SearchState) -> None:
        nonlocal due
        passed = time.monotonic() - start
        if passed >= due:
            due = passed + between
            line = f"ooodist: {described(state, passed)}"
            out.write(f"\r{line}\x1b[K" if on_terminal else f"{line}\n")
            out.flush()

    try:
        yield show
    finally:
        if on_terminal and due > first:  # it has shown something
            out.write("\r\x1b[K")
            out.flush()


def described(state: SearchState, passed: float) -> str:
    """Formats the state after ``passed`` seconds of searching."""
    words = [f"{state.phase}: {counted(state.simulated, 'plan')} simulated"]
    if state.best_seconds < math.inf:
        words.append(f"best {state.best_seconds * 1e3:.1f} ms a step")
    if state.baseline_seconds < math.inf:
        words[-1] += f" (baseline {state.baseline_seconds * 1e3:.1f} ms)"
    left = passed / state.share - passed
    words.append(f"{passed:.0f} s, about {left:.0f} s left")
    return ", ".join(words)
