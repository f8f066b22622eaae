"""Shows the output lines of several processes, each with its label in front.

A line is complete when it ends in a line feed. Text that ends in a carriage return is a progress
line, which the next one overwrites: on a terminal it is shown at once, on the last line of the
screen; in a file or pipe only the last one before a line feed is useful, and only that is written.
"""

import os
import re
import select
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ooodist.util.channel import channels

# TensorFlow's C++ has two formats of log lines: these are notes (I) and warnings (W), not errors.
# The last two are parts of such notes that begin differently.
NOTES = re.compile(
    rb"[IW]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ [\w./-]+:\d+\] |"
    rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] \S+:\d+\] |"
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR|"
    rb"To enable the following instructions: .*, rebuild TensorFlow with"
)
# The same, and what TensorFlow's C++ writes when the peer of an exchange is gone.
AFTERMATH = re.compile(
    NOTES.pattern + rb"|E\d{4} \d\d:\d\d:\d+\.\d+ +\d+ [\w./-]+:\d+\] |"
    rb"Additional GRPC error information from remote target |:UNKNOWN:Error received from peer |"
    rb"The error could be from a previous operation\. |\t \[\[\{\{node "
)
ERROR = b"ooodist: error: "  # ranks that share an error may each write it
ERASE_LINE = b"\r\x1b[K"
LAST_LINES = 3  # of a process that died without a word, but for its backtrace
BACKTRACE = re.compile(rb"\[bt\] \(\d+\)|Stack trace returned")
LONGEST_LINE = 1 << 20  # bytes; longer ones are cut here, to bound the launcher's memory


class LineSplitter:
    """Splits the bytes that one process writes into lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._progress = b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yields (text, is complete) for each line and progress line that ``data`` completes."""
        *lines, self._rest = re.split(rb"([\r\n])", self._rest + data)
        for text, end in zip(lines[::2], lines[1::2], strict=True):
            if end == b"\n":
                # "text\r\n": the line feed completes the progress line before it.
                yield text or self._progress, True
                self._progress = b""
            elif text:
                self._progress = text
                yield text, False
        if len(self._rest) > LONGEST_LINE:
            yield self._rest, True
            self._rest = b""

    def end(self) -> Iterator[tuple[bytes, bool]]:
        """Yields what is left without a line feed when the process has ended."""
        if last := self._rest or self._progress:
            yield last, True
        self._rest = self._progress = b""


class Output:
    """Writes labeled lines to the launcher's own standard output and standard error.

    With log files, TensorFlow's own notes and warnings go only there. An error that several
    processes write in the same words is shown once.

    ``failure`` is the error, such as a full disk, after which nothing more can be written.
    """

    def __init__(self, log_folder: Path | None) -> None:
        self.failure: OSError | None = None
        self._log_folder = log_folder
        self._channels = channels()
        self._logs: dict[str, BinaryIO] = {}
        self._begun: set[str] = set()  # labels whose log goes on after a restart
        self._progress_on_screen = False
        self._errors: set[bytes] = set()
        self._last: dict[str, deque[bytes]] = {}  # lines, by label
        self._hidden = NOTES if log_folder else None

    def hide_aftermath(self) -> None:
        """Hides, from now on, what TensorFlow says about exchanges that were aborted."""
        self._hidden = AFTERMATH

    def begin_again(self) -> None:
        """Shows again what was hidden as the job ended, as another one begins."""
        self._hidden = NOTES if self._log_folder else None
        self._errors.clear()

    def open_log(self, label: str) -> None:
        """Opens the log file of the process with this label, if logs are asked for.

        After a restart of the job it goes on in the same file.
        """
        if self._log_folder is not None and label not in self._logs:
            path = self._log_folder / f"{label.replace(' ', '-')}.log"
            self._logs[label] = path.open("ab" if label in self._begun else "wb", buffering=0)
            self._begun.add(label)

    def close_logs(self) -> None:
        """Closes all log files."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def show(self, descriptor: int, label: str, text: bytes, whole: bool) -> None:
        """Writes ``[label] text`` to file descriptor 1 or 2, and complete lines to the log."""
        if self.failure:
            return
        if whole and text and not BACKTRACE.match(text):
            self._last.setdefault(label, deque(maxlen=LAST_LINES)).append(text)
        try:
            if whole and label in self._logs:
                self._logs[label].write(text + b"\n")
            if whole and descriptor == 2 and self._is_left_out(text):
                return
            if whole or os.isatty(descriptor):
                self._write(descriptor, f"[{label}] ".encode() + text, whole)
        except OSError as error:
            self.failure = error

    def _is_left_out(self, text: bytes) -> bool:
        if text.startswith(ERROR):
            was_shown = text in self._errors
            self._errors.add(text)
            return was_shown
        return self._hidden is not None and self._hidden.match(text) is not None

    @property
    def is_blocked(self) -> bool:
        """Whether lines wait for their reader; what is shown meanwhile waits as well."""
        return any(channel.is_blocked for channel in self._channels.values())

    def wait(self, other: socket.socket, seconds: float | None) -> bool:
        """Waits until more can be written, and writes it, or until ``other`` can be read.

        Args:
            other: what else to wait for.
            seconds: the longest time to wait; None: no limit.

        Returns:
            Whether ``other`` can be read.
        """
        blocked = {c.descriptor: c for c in self._channels.values() if c.is_blocked}
        readable, writable, _ = select.select([other], list(blocked), [], seconds)
        for descriptor in writable:
            try:
                blocked[descriptor].flush()
            except OSError as error:
                self.failure = error
        return bool(readable)

    @property
    def where(self) -> str:
        """The end of an error message: where the full output is, if anywhere."""
        return f"; all that was written: {self._log_folder}" if self._log_folder else ""

    def last(self, label: str) -> list[str]:
        """The last complete lines of the process with this label, oldest first."""
        return [line.decode(errors="replace") for line in self._last.get(label, ())]

    def say(self, text: str) -> None:
        """Writes a message of the launcher itself to standard error."""
        self.show(2, "launch", text.encode(), whole=True)

    def _write(self, descriptor: int, line: bytes, whole: bool) -> None:
        if os.isatty(descriptor):
            if self._progress_on_screen:
                line = ERASE_LINE + line
            self._progress_on_screen = not whole
        self._channels[descriptor].write(line + b"\n" if whole else line)
