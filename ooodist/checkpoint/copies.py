"""Copies of a job's checkpoints in a second place: another folder, or a bucket.

::

    s3://bucket/digits/checkpoint-epoch-000007.keras
    s3://bucket/digits/best.keras
    s3://bucket/digits/.incomplete-8d1f...            being written, or left by a killed job

One job writes to a place. A file gets its name once it is complete. A checkpoint in parts is
complete once it has its manifest, which is copied last.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.folder import Place
from ooodist.checkpoint.parts import MANIFEST_NAME
from ooodist.checkpoint.state import State
from ooodist.errors import UserError
from ooodist.util.addresses import open_address, os_errors
from ooodist.util.replacing import INCOMPLETE_PREFIX, flush_to_disk

logger = logging.getLogger("ooodist")

OPTION = "checkpoint.copy_to"


class Copies:
    """The copies at an address.

    Args:
        address: a folder, which is created if missing, or any address that fsspec knows.
        option: the key of the job file that names it, for errors.

    Attributes:
        address: as given.

    Raises:
        UserError: the address cannot be used.
    """

    def __init__(self, address: str, option: str = OPTION) -> None:
        self.address = address
        self._option = option
        self._files, self._root = open_address(address, option)

    def check_writable(self) -> None:
        """Writes a small file and deletes it. Raises UserError if it cannot."""
        path = f"{self._root}/{INCOMPLETE_PREFIX}{secrets.token_hex(8)}"
        try:
            with os_errors():
                self._files.pipe_file(path, b"ooodist")
                self._files.rm_file(path)
        except OSError as error:
            raise UserError(
                f"{self._option} is {self.address}, where nothing can be written: {error}; give "
                "the permission, or another address"
            ) from error

    def checkpoints(self) -> list[tuple[Place, str]]:
        """Returns the names of the copies with their places, oldest first; best ones are left out.

        Raises UserError if the address cannot be read.
        """
        try:
            found = [(folders.place_of(name), name) for name in self._names()]
        except OSError as error:
            raise self._unreadable(error) from error
        return sorted((place, name) for place, name in found if place is not None)

    def put(self, path: Path) -> None:
        """Copies a file, or a checkpoint in parts; one of this name is replaced. Raises OSError."""
        with os_errors():
            if path.is_dir():
                self._put_parts(path)
                return
            temporary = f"{self._root}/{INCOMPLETE_PREFIX}{secrets.token_hex(8)}"
            self._files.put_file(str(path), temporary)
            self._files.mv(temporary, f"{self._root}/{path.name}")

    def prune(self, keep: int) -> None:
        """Deletes all but the ``keep`` newest, best ones that are no longer the best, and what a
        killed job left incomplete. Raises OSError."""
        names = self._names()
        places = sorted((place, name) for name in names if (place := folders.place_of(name)))
        best = sorted(name for name in names if name.startswith("best-epoch-"))
        left = [name for name in names if name.startswith(INCOMPLETE_PREFIX)]
        for name in (*(name for _, name in places[:-keep]), *best[:-1], *left):
            with contextlib.suppress(FileNotFoundError), os_errors():
                self._files.rm(f"{self._root}/{name}", recursive=True)

    def fetch_newest(self, folder: Path) -> tuple[Path, State]:
        """Copies the newest undamaged checkpoint into a folder, and returns it with its state.

        Raises UserError if there is none, or it cannot be copied.
        """
        found = self.checkpoints()
        for _, name in reversed(found):
            path = folder / name
            temporary = folders.incomplete(path)
            try:
                self._get(name, temporary)
                state = folders.read_state(temporary)
                if temporary.is_dir():
                    folders.put_in_place(temporary, path)
                else:
                    os.replace(temporary, path)
                    flush_to_disk(folder)
            except UserError as error:
                logger.warning("%s/%s: %s: looking for an earlier one", self.address, name, error)
            except OSError as error:
                raise self._unreadable(error) from error
            else:
                return path, state
            finally:
                folders.delete(temporary)
        damaged = " that is whole" if found else ""
        raise UserError(
            f"{self._option}: there is no checkpoint{damaged} in {self.address}; check the address"
        )

    def _put_parts(self, path: Path) -> None:
        target = f"{self._root}/{path.name}"
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(target, recursive=True)
        self._files.makedirs(target, exist_ok=True)
        for file in sorted(path.iterdir(), key=lambda file: file.name == MANIFEST_NAME):
            self._files.put_file(str(file), f"{target}/{file.name}")

    def _get(self, name: str, path: Path) -> None:
        source = f"{self._root}/{name}"
        with os_errors():
            if not self._files.isdir(source):
                self._files.get_file(source, str(path))
                return
            path.mkdir()
            for file in self._files.ls(source, detail=False):
                file_name = file.rpartition("/")[2]
                if file_name not in ("", ".", ".."):  # a bucket may list the folder itself
                    self._files.get_file(file, str(path / file_name))

    def _names(self) -> list[str]:
        try:
            with os_errors():
                found = self._files.ls(self._root, detail=False)
        except FileNotFoundError as error:
            if type(error.__cause__).__name__ == "NoSuchBucket":  # misspelled: not an empty place
                raise
            return []  # a bucket has no empty folders
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    def _unreadable(self, error: OSError) -> UserError:
        return UserError(
            f"{self._option} is {self.address}, which cannot be read: {error}; check the address, "
            "the permission and the network"
        )
