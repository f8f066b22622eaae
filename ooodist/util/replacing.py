"""Files that are complete or not there: a temporary file takes another one's place at the end."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from ooodist.errors import UserError

INCOMPLETE_PREFIX = ".incomplete-"
"""Of the names of files that are being written, or whose writer was killed."""


@contextlib.contextmanager
def replacing(file: Path, what: str | None = None) -> Iterator[Path]:
    """A temporary file beside ``file`` that takes its place at the end, once it is on the disk.

    Args:
        file: the ending of its name is also the temporary one's.
        what: it is, for the error; None: an OSError is raised as it is.

    Raises:
        UserError: it cannot be written.
    """
    temporary = file.with_name(f"{INCOMPLETE_PREFIX}{secrets.token_hex(8)}{file.suffix}")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, file)
        _flush_to_disk(file.parent)
    except OSError as error:
        if what is None:
            raise
        raise UserError(f"{what} {file} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
