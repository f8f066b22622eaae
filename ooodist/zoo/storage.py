"""Access to the files of a zoo in a folder or bucket, through fsspec.

    zoo/resnet20-3f2a9c81d0aa.keras    a model, named by its id
    zoo/.incomplete-8d1f...            a file being written, or left by a killed writer
    zoo/summary.json.gz                see summary.py

A file gets its final name only once it is complete, so others never see what a killed writer left.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ooodist.util.addresses import Store, os_errors
from ooodist.util.digest import hex_digest
from ooodist.util.replacing import INCOMPLETE_PREFIX
from ooodist.zoo.entry import ENDING

INDEX_NAME = "index.sqlite"
SUMMARY_NAME = "summary.json.gz"
MOST_SUMMARY_BYTES = 2**28
VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
LEFTOVER_SECONDS = 3600.0  # age from which an incomplete file counts as abandoned


class State(NamedTuple):
    """The state of a file; if it differs, the file was replaced.

    Attributes:
        bytes: size of the file.
        version: its ETag, modification time or whatever the driver offers; empty if nothing.
    """

    bytes: int
    version: str


class Storage(Store):
    """The folder or bucket of a zoo; every failure of its methods is an OSError."""

    def __init__(self, address: str, *, create: bool = True) -> None:
        super().__init__(address, "zoo", create=create)

    def index_files(self) -> list[Path]:
        """The default places of the index, all on this machine, best first.

        A later place is used if an earlier one cannot be, as on a full disk.
        """
        name = hex_digest(f"{self.files.protocol}{self.root}", 16)
        places = [Path.home() / ".cache" / "ooodist" / "zoo" / f"{name}.sqlite"]
        if self.is_local and os.access(self.root, os.W_OK):
            places.insert(0, Path(self.root, INDEX_NAME))
        return places

    def states(self) -> dict[str, State]:
        """The states of all model files by id; deletes old files of killed writers."""
        found = {}
        for name, said in self.listing():
            if said["type"] != "file":
                continue
            if name.startswith(INCOMPLETE_PREFIX):
                self._delete_leftover(said["name"])
            elif name.endswith(ENDING) and name.isprintable():
                found[name.removesuffix(ENDING)] = _state(said)
        return found

    def state(self, model: str) -> State:
        """The state of a model's file from a listing, as ``info`` may differ."""
        with os_errors():
            (said,) = self.files.ls(self._path(model), detail=True)
        return _state(said)

    def read_summary(self) -> bytes | None:
        """The content of the summary; None if there is none, or it is far too large."""
        path = f"{self.root}/{SUMMARY_NAME}"
        with contextlib.suppress(FileNotFoundError), os_errors():
            if self.files.info(path)["size"] <= MOST_SUMMARY_BYTES:
                with self.files.open(path, "rb") as file:
                    content: bytes = file.read()
                return content
        return None

    def write_summary(self, content: bytes) -> None:
        """Replaces the summary with a new one."""
        with self.incomplete(io.BytesIO(content)) as copy, os_errors():
            self.files.mv(copy, f"{self.root}/{SUMMARY_NAME}")

    def open(self, model: str) -> BinaryIO:
        """Opens the file of a model for reading."""
        with os_errors():
            file: BinaryIO = self.files.open(self._path(model), "rb")
        return file

    def created(self, model: str) -> float:
        """When the file of a model was written, in Unix seconds."""
        with os_errors():
            return float(self.files.modified(self._path(model)).timestamp())

    @contextlib.contextmanager
    def incomplete(self, file: BinaryIO) -> Iterator[str]:
        """Yields the path of a temporary copy, for :meth:`complete`; deletes it at the end."""
        path = self.incomplete_path()
        try:
            with os_errors():
                file.seek(0)
                with self.files.open(path, "wb") as copy:
                    shutil.copyfileobj(file, copy, 2**20)
                self.flush(path)
            yield path
        finally:
            self._delete(path)

    def complete(self, path: str, model: str) -> None:
        """Turns an incomplete copy into the file of a model."""
        with os_errors():
            self.files.mv(path, self._path(model))

    def delete(self, model: str) -> None:
        """Deletes the file of a model, if there is one."""
        self._delete(self._path(model))

    def _path(self, model: str) -> str:
        return f"{self.root}/{model}{ENDING}"

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), os_errors():
            self.files.rm_file(path)

    def _delete_leftover(self, path: str) -> None:
        # Another process may have deleted it, or this one may lack permission.
        with contextlib.suppress(OSError), os_errors():
            if time.time() - self.files.modified(path).timestamp() > LEFTOVER_SECONDS:
                self.files.rm_file(path)


def _state(said: Mapping[str, Any]) -> State:
    """The state of a file from a driver's description of it."""
    versions = [str(said[key]) for key in VERSION_KEYS if said.get(key)]
    return State(said["size"], versions[0] if versions else "")
