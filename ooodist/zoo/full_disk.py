"""Whether a full disk is behind an error, however many errors were made of it on its way."""

from __future__ import annotations

import errno
import sqlite3

_NUMBERS = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether the error, or one that it was raised from, says that a disk or a quota is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NUMBERS:
            return True
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        error = error.__cause__
    return False
