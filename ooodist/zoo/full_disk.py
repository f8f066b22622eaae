"""Detects a full disk or quota as the root cause of an exception."""

from __future__ import annotations

import errno
import sqlite3

_NUMBERS = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether the error, or any in its chain of causes, means a full disk or quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NUMBERS:
            return True
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        error = error.__cause__
    return False
