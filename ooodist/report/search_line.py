"""Shows the progress of a search: on one line of a terminal, else as a new line now and then."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import TextIO

from ooodist.planner.progress import SearchState
from ooodist.util.quantity import counted

QUIET_SECONDS = 2.0  # nothing is shown of shorter searches
TERMINAL_SECONDS = 0.2  # between two updates on a terminal
LINE_SECONDS = 10.0  # and elsewhere


class SearchLine:
    """Shows each state that it is called with; a context manager around the search.

    Args:
        stream: where to write; a terminal's line is overwritten, and cleared at the end. None for
            stderr.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._on_terminal = self._stream.isatty()
        self._start = time.monotonic()
        self._next = QUIET_SECONDS if self._on_terminal else LINE_SECONDS  # from the start
        self._is_shown = False

    def __enter__(self) -> SearchLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_shown and self._on_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __call__(self, state: SearchState) -> None:
        passed = time.monotonic() - self._start
        if passed < self._next:
            return
        self._next = passed + (TERMINAL_SECONDS if self._on_terminal else LINE_SECONDS)
        self._is_shown = True
        line = f"ooodist: {described(state, passed)}"
        self._stream.write(f"\r{line}\x1b[K" if self._on_terminal else f"{line}\n")
        self._stream.flush()


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
