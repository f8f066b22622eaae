"""Finds this process's local rank where no launcher has set it."""

from __future__ import annotations

import itertools
import os
import socket


class LocalRank:
    """The lowest number from 0 that no other living process of the job has on this host.

    The number is held as the name of a Unix socket in Linux's abstract namespace: two processes
    cannot bind one name, no file is left behind, and it is free again when the process ends,
    however it ends.

    Args:
        job: an identifier that all processes of the job share, and no other job of this user.

    Attributes:
        rank: the number.
    """

    def __init__(self, job: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        for self.rank in itertools.count():
            try:
                self._socket.bind(f"\0ooodist/{os.getuid()}/{job}/{self.rank}")
                return
            except OSError:  # another process has it
                if self.rank >= 4096:
                    raise
