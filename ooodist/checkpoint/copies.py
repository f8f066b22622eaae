"""Copies of a job's checkpoints in a second place: another folder, or a bucket.

::

    s3://bucket/digits/checkpoint-epoch-000007.keras
    s3://bucket/digits/best.keras
    s3://bucket/digits/.incomplete-8d1f...            being written, or left by a killed job

One job writes to a place. A file gets its name once it is complete, and on disk. A checkpoint in
parts is complete once it has its manifest, which is copied last.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.folder import Place
from ooodist.checkpoint.parts import MANIFEST_NAME
from ooodist.checkpoint.state import State
from ooodist.errors import UserError
from ooodist.util.addresses import Store, os_errors
from ooodist.util.replacing import delete, incomplete, put_in_place

logger = logging.getLogger("ooodist")

OPTION = "checkpoint.copy_to"


class Copies(Store):
    """The copies at an address; ``option`` is the key of the job file that names it."""

    def __init__(self, address: str, option: str = OPTION) -> None:
        super().__init__(address, option)
        self._option = option

    def check_writable(self) -> None:
        """Writes a small file and deletes it. Raises UserError if it cannot."""
        path = self.incomplete_path()
        try:
            with os_errors():
                self.files.pipe_file(path, b"ooodist")
                self.files.rm_file(path)
        except OSError as error:
            raise UserError(
                f"{self._option} is {self.address}, where nothing can be written: {error}; give "
                "the permission, or another address"
            ) from error

    def checkpoints(self) -> list[tuple[Place, str]]:
        """The names of the copies with their places, oldest first; best ones are left out.

        Raises UserError if the address cannot be read.
        """
        try:
            return folders.ordered(name for name, _ in self.listing())
        except OSError as error:
            raise self._unreadable(error) from error

    def put(self, path: Path) -> None:
        """Copies a file, or a checkpoint in parts; one of this name is replaced. Raises OSError."""
        with os_errors():
            if path.is_dir():
                self._put_parts(path)
                return
            temporary = self.incomplete_path()
            self.files.put_file(str(path), temporary)
            self.flush(temporary)
            self.files.mv(temporary, f"{self.root}/{path.name}")

    def prune(self, keep: int) -> None:
        """Deletes all but the ``keep`` newest, best ones that are no longer the best, and what a
        killed job left incomplete. Raises OSError."""
        names = [name for name, _ in self.listing()]
        best = sorted(name for name in names if name.startswith("best-epoch-"))
        for name in (*folders.expired(names, keep), *best[:-1]):
            with contextlib.suppress(FileNotFoundError), os_errors():
                self.files.rm(f"{self.root}/{name}", recursive=True)

    def fetch_newest(self, folder: Path) -> tuple[Path, State]:
        """Copies the newest undamaged checkpoint into a folder, and returns it with its state.

        Raises UserError if there is none, or it cannot be copied.
        """
        found = self.checkpoints()
        for _, name in reversed(found):
            path = folder / name
            temporary = incomplete(path)
            try:
                self._get(name, temporary)
                state = folders.read_state(temporary)
                put_in_place(temporary, path)
            except UserError as error:
                logger.warning("%s/%s: %s: looking for an earlier one", self.address, name, error)
            except OSError as error:
                raise self._unreadable(error) from error
            else:
                return path, state
            finally:
                delete(temporary)
        damaged = " that is whole" if found else ""
        raise UserError(
            f"{self._option}: there is no checkpoint{damaged} in {self.address}; check the address"
        )

    def _put_parts(self, path: Path) -> None:
        target = f"{self.root}/{path.name}"
        with contextlib.suppress(FileNotFoundError):
            self.files.rm(target, recursive=True)
        self.files.makedirs(target, exist_ok=True)
        for file in sorted(path.iterdir(), key=lambda file: file.name == MANIFEST_NAME):
            self.files.put_file(str(file), f"{target}/{file.name}")
            self.flush(f"{target}/{file.name}")

    def _get(self, name: str, path: Path) -> None:
        source = f"{self.root}/{name}"
        with os_errors():
            if not self.files.isdir(source):
                self.files.get_file(source, str(path))
                return
            path.mkdir()
            for file in self.files.ls(source, detail=False):
                file_name = file.rpartition("/")[2]
                if file_name not in ("", ".", ".."):  # a bucket may list the folder itself
                    self.files.get_file(file, str(path / file_name))

    def _unreadable(self, error: OSError) -> UserError:
        return UserError(
            f"{self._option} is {self.address}, which cannot be read: {error}; check the address, "
            "the permission and the network"
        )
