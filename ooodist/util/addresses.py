"""Folders and buckets by their address, through fsspec: ``runs/mine``, ``s3://bucket/runs``."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ooodist.errors import UserError
from ooodist.util.replacing import INCOMPLETE_PREFIX, flush_to_disk


class Store:
    """The files in a folder or bucket.

    Args:
        address: a folder, or any address that fsspec knows.
        what: what is there, for errors.
        create: whether a missing folder is created, and no error.

    Attributes:
        address: as given.
        files: the fsspec driver.
        root: the path of the folder or bucket for it.
        is_local: whether it is a folder of this machine.

    Raises:
        UserError: no driver is installed for the address, or the folder is missing or cannot be
            created.
    """

    def __init__(self, address: str, what: str, *, create: bool = True) -> None:
        self.address = address
        try:
            self.files, root = fsspec.core.url_to_fs(address, skip_instance_cache=True)
            # A cached listing would hide what other machines and threads do.
            self.files.dircache.use_listings_cache = False
            self.is_local = isinstance(self.files, LocalFileSystem)
            if self.is_local and create:
                self.files.makedirs(root, exist_ok=True)
        except ImportError as error:
            raise UserError(
                f"{what} {address} needs a driver that is not installed: {error} (pip install it)"
            ) from error
        except Exception as error:  # each driver raises its own types
            raise UserError(
                f"{what} {address} cannot be used: {error}; give a folder, or an address as "
                "s3://bucket/folder"
            ) from error
        if self.is_local and not self.files.isdir(root):
            raise UserError(f"there is no {what} {address}; check the path, or make the folder")
        self.root = root.rstrip("/")

    def incomplete_path(self) -> str:
        """A new path for a file that gets its name once it is complete."""
        return f"{self.root}/{INCOMPLETE_PREFIX}{secrets.token_hex(8)}"

    def flush(self, path: str) -> None:
        """Waits until a file is on disk, where that is one of this machine. Raises OSError."""
        if self.is_local:
            flush_to_disk(Path(path))

    def listing(self) -> list[tuple[str, dict[str, Any]]]:
        """The name of each file, with what the driver says of it. Raises OSError."""
        try:
            with os_errors():
                found = self.files.ls(self.root, detail=True)
        except FileNotFoundError as error:
            if type(error.__cause__).__name__ == "NoSuchBucket":  # misspelled: not an empty place
                raise
            return []  # a bucket has no empty folders
        return [(each["name"].rstrip("/").rpartition("/")[2], each) for each in found]


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Converts the drivers' own exception types to OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
