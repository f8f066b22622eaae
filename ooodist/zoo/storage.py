"""The files of a zoo in a folder or bucket, through fsspec.

    zoo/resnet20-3f2a9c81d0aa.keras    a model, named by its id
    zoo/.incomplete-8d1f...            one that is being written, or whose writer was killed
    zoo/summary.json.gz                see summary.py

A file gets its name only once it is complete, so whoever is killed leaves nothing that others see.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ooodist.errors import UserError
from ooodist.util.digest import hex_digest
from ooodist.util.replacing import INCOMPLETE_PREFIX
from ooodist.zoo.entry import ENDING

INDEX_NAME = "index.sqlite"
SUMMARY_NAME = "summary.json.gz"
MOST_SUMMARY_BYTES = 2**28
VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
LEFTOVER_SECONDS = 3600.0  # after which what is incomplete is taken for a killed writer's


class State(NamedTuple):
    """By which it is seen that a file is another one than before.

    Attributes:
        bytes: of it.
        version: its ETag, its time, or what else a driver has; empty if it has nothing.
    """

    bytes: int
    version: str


class Storage:
    """The folder or bucket at an address; all that goes wrong there is an OSError.

    Args:
        address: a folder, which is made if there is none, or any address that fsspec knows.

    Attributes:
        address: the same.
        is_local: whether it is a folder.

    Raises:
        UserError: there is no driver for the address, or the folder cannot be made.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._files, self._root = _file_system(address)
        self.is_local = isinstance(self._files, LocalFileSystem)

    def index_files(self) -> list[Path]:
        """Where the index is, unless the user says otherwise: on this machine, in any case.

        The second place is for when the first one cannot be used, as on a full disk.
        """
        name = hex_digest(f"{self._files.protocol}{self._root}", 16)
        places = [Path.home() / ".cache" / "ooodist" / "zoo" / f"{name}.sqlite"]
        if self.is_local and os.access(self._root, os.W_OK):
            places.insert(0, Path(self._root, INDEX_NAME))
        return places

    def states(self) -> dict[str, State]:
        """Of the files of all models, by id. What killed writers left long ago is deleted."""
        found = {}
        for path, state in self._listing():
            name = path.rpartition("/")[2]
            if name.startswith(INCOMPLETE_PREFIX):
                self._delete_leftover(path)
            elif name.endswith(ENDING) and name.isprintable():
                found[name.removesuffix(ENDING)] = state
        return found

    def state(self, model: str) -> State:
        """Of the file of a model, as a listing has it: drivers say it otherwise elsewhere."""
        with _os_errors():
            (said,) = self._files.ls(self._path(model), detail=True)
        return _state(said)

    def read_summary(self) -> bytes | None:
        """What :meth:`write_summary` wrote; None: there is none, or far too large a one."""
        path = f"{self._root}/{SUMMARY_NAME}"
        with contextlib.suppress(FileNotFoundError), _os_errors():
            if self._files.info(path)["size"] <= MOST_SUMMARY_BYTES:
                with self._files.open(path, "rb") as file:
                    content: bytes = file.read()
                return content
        return None

    def write_summary(self, content: bytes) -> None:
        """Puts a summary in the place of the one before."""
        with self.incomplete(io.BytesIO(content)) as copy, _os_errors():
            self._files.mv(copy, f"{self._root}/{SUMMARY_NAME}")

    def open(self, model: str) -> BinaryIO:
        """The file of a model, open for reading."""
        with _os_errors():
            file: BinaryIO = self._files.open(self._path(model), "rb")
        return file

    def created(self, model: str) -> float:
        """When the file of a model was written, in unix seconds."""
        with _os_errors():
            return float(self._files.modified(self._path(model)).timestamp())

    @contextlib.contextmanager
    def incomplete(self, file: BinaryIO) -> Iterator[str]:
        """A copy of a file that is no model yet; see :meth:`complete`. It is deleted at the end."""
        path = f"{self._root}/{INCOMPLETE_PREFIX}{secrets.token_hex(8)}"
        try:
            with _os_errors():
                file.seek(0)
                with self._files.open(path, "wb") as copy:
                    shutil.copyfileobj(file, copy, 2**20)
                if self.is_local:
                    with Path(path).open("rb") as written:
                        os.fsync(written.fileno())
            yield path
        finally:
            self._delete(path)

    def complete(self, path: str, model: str) -> None:
        """Makes an incomplete copy the file of a model."""
        with _os_errors():
            self._files.mv(path, self._path(model))

    def delete(self, model: str) -> None:
        """Deletes the file of a model, if there is one."""
        self._delete(self._path(model))

    def _path(self, model: str) -> str:
        return f"{self._root}/{model}{ENDING}"

    def _listing(self) -> list[tuple[str, State]]:
        """Paths and states of all files."""
        try:
            with _os_errors():
                found = self._files.ls(self._root, detail=True)
        except FileNotFoundError as error:
            if type(error.__cause__).__name__ == "NoSuchBucket":  # misspelt: no empty zoo
                raise
            return []  # a bucket has no empty folders
        return [(each["name"], _state(each)) for each in found if each["type"] == "file"]

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), _os_errors():
            self._files.rm_file(path)

    def _delete_leftover(self, path: str) -> None:
        # Another process may be faster, or nothing may be deleted here.
        with contextlib.suppress(OSError), _os_errors():
            if time.time() - self._files.modified(path).timestamp() > LEFTOVER_SECONDS:
                self._files.rm_file(path)


def _state(said: Mapping[str, Any]) -> State:
    """From what a driver says of a file."""
    versions = [str(said[key]) for key in VERSION_KEYS if said.get(key)]
    return State(said["size"], versions[0] if versions else "")


def _file_system(address: str) -> tuple[Any, str]:
    """The driver, and what the address is to it."""
    try:
        files, root = fsspec.core.url_to_fs(address, skip_instance_cache=True)
        # A listing that is kept hides what other machines and threads did since.
        files.dircache.use_listings_cache = False
        if isinstance(files, LocalFileSystem):
            files.makedirs(root, exist_ok=True)
    except ImportError as error:
        raise UserError(
            f"zoo {address} needs a driver that is not installed: {error} (pip install it)"
        ) from error
    except Exception as error:  # each driver has errors of its own
        raise UserError(
            f"zoo {address} cannot be used: {error}; give a folder, or an address as s3://bucket/zoo"
        ) from error
    return files, root.rstrip("/")


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Makes an OSError of what is none: drivers have errors of their own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
