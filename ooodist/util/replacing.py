"""Atomic writing of files: a temporary file replaces the target once it is complete."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from ooodist.errors import UserError

INCOMPLETE_PREFIX = ".incomplete-"
"""Prefix of the names of files that are being written, or whose writer was killed."""


@contextlib.contextmanager
def replacing(
    file: Path, what: str | None = None, *, only_if_missing: bool = False
) -> Iterator[Path]:
    """Yields a temporary path beside ``file`` that replaces it at the end, once it is on disk.

    Args:
        file: the file to replace; the temporary one has the same suffix.
        what: the kind of file, for the error; None to let an OSError through unchanged.
        only_if_missing: leave the file that is there by then: the first of several writers wins.

    Raises:
        UserError: the file cannot be written.
    """
    temporary = file.with_name(f"{INCOMPLETE_PREFIX}{secrets.token_hex(8)}{file.suffix}")
    try:
        yield temporary
        flush_to_disk(temporary)
        if only_if_missing:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, file)  # unlike a rename, this replaces nothing
        else:
            os.replace(temporary, file)
        flush_to_disk(file.parent)
    except OSError as error:
        if what is None:
            raise
        raise UserError(f"{what} {file} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Waits until a file or folder is on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
