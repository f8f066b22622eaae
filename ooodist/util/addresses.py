"""Folders and buckets by their address, through fsspec: ``runs/mine``, ``s3://bucket/runs``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ooodist.errors import UserError


def open_address(address: str, what: str, *, create: bool = True) -> tuple[Any, str]:
    """The fsspec driver for an address, and the path that it uses.

    Args:
        address: a folder, or any address that fsspec knows.
        what: what is there, for errors.
        create: whether a missing folder is created, and no error.

    Raises:
        UserError: no driver is installed for the address, or the folder is missing or cannot be
            created.
    """
    try:
        files, root = fsspec.core.url_to_fs(address, skip_instance_cache=True)
        # A cached listing would hide what other machines and threads do.
        files.dircache.use_listings_cache = False
        if is_local(files) and create:
            files.makedirs(root, exist_ok=True)
    except ImportError as error:
        raise UserError(
            f"{what} {address} needs a driver that is not installed: {error} (pip install it)"
        ) from error
    except Exception as error:  # each driver raises its own types
        raise UserError(
            f"{what} {address} cannot be used: {error}; give a folder, or an address as "
            "s3://bucket/folder"
        ) from error
    if is_local(files) and not files.isdir(root):
        raise UserError(f"there is no {what} {address}; check the path, or make the folder")
    return files, root.rstrip("/")


def is_local(files: Any) -> bool:
    """Whether a driver is that of this machine's folders."""
    return isinstance(files, LocalFileSystem)


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Converts the drivers' own exception types to OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
