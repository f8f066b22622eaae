"""Writes to standard output and standard error, without waiting for who reads them.

A terminal that is stopped (Ctrl-S) or a pipe that nobody reads would otherwise keep the launcher
from seeing signals, the end of processes, and its timeout.
"""

import os
import socket
import stat
import sys

LARGEST_WRITE = 1 << 16


class Channel:
    """One descriptor; what cannot be written yet is kept.

    Attributes:
        descriptor: can be written to, as select says, when ``flush`` can go on.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._left = bytearray()
        self._socket: socket.socket | None = None
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(descriptor))
        elif not stat.S_ISREG(mode):
            # O_NONBLOCK of the descriptor itself would hold for all programs that share it.
            try:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
                self.descriptor = os.open(f"/proc/self/fd/{descriptor}", flags)
            except OSError:  # a terminal of another user, or nobody reads: as it is
                pass

    @property
    def is_blocked(self) -> bool:
        """Whether something waits for its reader."""
        return bool(self._left)

    def write(self, data: bytes) -> None:
        """Writes what can be written now, after what is left from before. Raises OSError."""
        self._left += data
        self.flush()

    def flush(self) -> None:
        """Writes what can be written now. Raises OSError, after which nothing is left."""
        try:
            while self._left:
                del self._left[: self._write(bytes(self._left[:LARGEST_WRITE]))]
        except BlockingIOError:
            pass
        except OSError:
            self._left.clear()
            raise

    def _write(self, data: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        return os.write(self.descriptor, data)


def channels() -> dict[int, Channel]:
    """Those of descriptors 1 and 2: the same one if both are the same file."""
    output = Channel(1)
    return {1: output, 2: output if os.path.sameopenfile(1, 2) else Channel(2)}


def open_closed_streams() -> None:
    """Puts /dev/null where standard input, output or error are closed.

    Otherwise the next files to be opened get their numbers, and what is meant for a reader.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
