"""Atomic writing of files and folders: a temporary one gets the name once it is complete."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from ooodist.errors import UserError

INCOMPLETE_PREFIX = ".incomplete-"
"""Prefix of the names of what is being written, or of what a killed writer has left."""


@contextlib.contextmanager
def replacing(
    path: Path, what: str | None = None, *, only_if_missing: bool = False
) -> Iterator[Path]:
    """Yields a temporary path beside ``path`` that replaces it at the end, once it is on disk.

    Args:
        path: the file or folder to replace; the temporary one has the same suffix.
        what: what it is, for the error; None to let an OSError through unchanged.
        only_if_missing: leave the file that is there by then: the first of several writers wins.

    Raises:
        UserError: it cannot be written.
    """
    temporary = incomplete(path)
    try:
        yield temporary
        if only_if_missing:
            flush_to_disk(temporary)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)  # unlike a rename, this replaces nothing
            flush_to_disk(path.parent)
        else:
            put_in_place(temporary, path)
    except OSError as error:
        if what is None:
            raise
        raise UserError(f"{what} {path} cannot be written: {error}") from error
    finally:
        delete(temporary)


def incomplete(path: Path) -> Path:
    """A new path beside ``path``, of something that is not complete."""
    return path.with_name(f"{INCOMPLETE_PREFIX}{secrets.token_hex(8)}{path.suffix}")


def put_in_place(temporary: Path, path: Path) -> None:
    """Gives what is complete its name, in place of what has it. Raises OSError.

    A folder cannot take the place of another in one step, as a file can: there may be none for a
    moment.
    """
    flush_to_disk(temporary)
    before = path.rename(incomplete(path)) if path.is_dir() else None
    os.replace(temporary, path)
    flush_to_disk(path.parent)
    if before is not None:
        delete(before)


def delete(path: Path) -> None:
    """Deletes a file or folder; a folder is at no time there in part under its name."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith(INCOMPLETE_PREFIX):
        path = path.rename(incomplete(path))
    shutil.rmtree(path, ignore_errors=True)


def flush_to_disk(path: Path) -> None:
    """Waits until a file or folder is on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
