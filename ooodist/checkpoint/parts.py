"""Checkpoints in parts: folders to which each rank writes what it has.

::

    checkpoint-epoch-000007/
        part-0.npz       what rank 0 wrote, an array a variable
        part-1.npz
        manifest.json    where each variable is, with a digest of its values; the State; the model

The manifest is written last, and then the folder gets its name; so it is complete or not there.
Reading a variable reads that variable alone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ooodist.checkpoint.arrays import Entry, Reader, Writer, dtype_of
from ooodist.checkpoint.content import ASSETS, BEST, EXTRAS, RANKS, VARIABLES, Content
from ooodist.checkpoint.state import State
from ooodist.errors import UserError
from ooodist.util import yaml_dataclass
from ooodist.util.digest import hex_digest

MANIFEST_NAME = "manifest.json"
FORMAT = 1
Written = tuple[str, Any, Entry]  # the kind and key of an array, and where it is
_PART = re.compile(r"part-\d+\.npz")


def part_name(rank: int) -> str:
    """The name of the file that a rank writes."""
    return f"part-{rank}.npz"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint has, and where. ``variables`` and ``best`` are in the state's order."""

    state: State
    config: str  # the text of a Keras file's config.json
    metadata: str  # and of its metadata.json
    sizes: dict[str, int]  # bytes of each part
    variables: tuple[Entry, ...]
    best: tuple[Entry, ...] = ()  # the weights at the best epoch, if they are kept
    groups: dict[str, str] = field(default_factory=dict)  # of a weights file, with layers' names
    extras: dict[str, Entry] = field(default_factory=dict)  # what else is in it, by place
    assets: dict[str, Entry] = field(default_factory=dict)  # files of layers, as bytes
    # What the steps of each rank keep for themselves, by name: rows that are one below the other.
    ranks: dict[str, tuple[Entry, ...]] = field(default_factory=dict)
    format: int = FORMAT

    def entries(self) -> Iterator[Entry]:
        """Yields all arrays."""
        yield from self.variables
        yield from self.best
        yield from self.extras.values()
        yield from self.assets.values()
        yield from itertools.chain(*self.ranks.values())


def write_part(folder: Path, rank: int, content: Content) -> list[Written]:
    """Writes a part of a checkpoint with all arrays of a content. Raises OSError, UserError."""
    items = list(content.items())
    if not items:
        return []
    with Writer(folder / part_name(rank)) as part:
        return [
            (kind, key, part.write(name, content.value(kind, key))) for kind, key, name in items
        ]


def complete(folder: Path, content: Content, written: Iterable[Written]) -> None:
    """Writes the manifest of what all parts have together, by rank. Raises OSError."""
    found: dict[str, dict[Any, Entry]] = {VARIABLES: {}, BEST: {}, EXTRAS: {}, ASSETS: {}}
    ranks: dict[str, list[Entry]] = {}
    files = set()
    for kind, key, entry in written:
        files.add(entry.file)
        if kind == RANKS:
            ranks.setdefault(key, []).append(entry)
        else:
            found[kind][key] = entry
    manifest = Manifest(
        state=replace(content.state, fingerprint=""),
        config=content.config,
        metadata=content.metadata,
        sizes={file: (folder / file).stat().st_size for file in sorted(files)},
        variables=tuple(found[VARIABLES][index] for index in range(len(content.state.variables))),
        best=tuple(found[BEST][index] for index in range(content.num_best)),
        groups=dict(content.groups),
        extras=found[EXTRAS],
        assets=found[ASSETS],
        ranks={key: tuple(rows) for key, rows in ranks.items()},
    )
    write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest, with a digest of itself. Raises OSError."""
    content = yaml_dataclass.plain(manifest)
    with (folder / MANIFEST_NAME).open("w", encoding="utf-8") as file:
        json.dump({"digest": _digest(content), "content": content}, file)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest of a checkpoint, and whether all parts are there.

    Raises UserError if something is missing or was changed.
    """
    if not folder.is_dir():
        raise UserError(f"there is no checkpoint {folder}; check the path")
    try:
        whole = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        digest, content = whole["digest"], whole["content"]
        is_whole = digest == _digest(content)
    except FileNotFoundError as error:
        raise _damaged(folder, f"there is no {MANIFEST_NAME} in it") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, f"{MANIFEST_NAME}: {error}") from error
    if not is_whole:
        raise _damaged(folder, f"{MANIFEST_NAME} was changed")
    try:
        manifest = yaml_dataclass.read(Manifest, content)
        _check(manifest)
    except UserError as error:
        raise UserError(f"checkpoint {folder} was written by another ooodist: {error}") from error
    for name, size in manifest.sizes.items():
        if not (folder / name).is_file():
            raise _damaged(folder, f"its part {name} is missing")
        if (found := (folder / name).stat().st_size) != size:
            raise _damaged(folder, f"its part {name} has {found} bytes instead of {size}")
    return manifest


def _check(manifest: Manifest) -> None:
    """Raises UserError for what no ooodist of this format writes."""
    if manifest.format != FORMAT:
        raise UserError(f"format is {manifest.format}; it must be {FORMAT}")
    if len(manifest.variables) != len(manifest.state.variables):
        raise UserError(
            f"it has {len(manifest.variables)} variables, and its state "
            f"{len(manifest.state.variables)}"
        )
    for name in manifest.sizes:
        if not _PART.fullmatch(name):
            raise UserError(f"a part is called {name!r}")
    for entry in manifest.entries():
        if entry.file not in manifest.sizes:
            raise UserError(f"{entry.member} is in {entry.file!r}, which is no part")
        if any(size < 0 for size in entry.shape):
            raise UserError(f"the shape of {entry.member} is {entry.shape}")
        try:
            is_number = not dtype_of(entry.dtype).hasobject
        except TypeError:
            is_number = False
        if not is_number:
            raise UserError(f"the dtype of {entry.member} is {entry.dtype!r}")
    for key, rows in manifest.ranks.items():
        shapes = [row.shape for row in rows]
        if () in shapes or len({shape[1:] for shape in shapes}) != 1:
            raise UserError(f"the shapes of {key}, a row for each rank, are {shapes}")


class Parts(Content):
    """A checkpoint in parts.

    Raises:
        UserError: something of it is missing or was changed; so do all methods that read.

    Attributes:
        manifest: what it has.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.manifest = manifest = read_manifest(folder)
        self.state, self.config, self.metadata = manifest.state, manifest.config, manifest.metadata
        self.groups, self.num_best = manifest.groups, len(manifest.best)
        self.extras, self.assets, self.ranks = manifest.extras, manifest.assets, manifest.ranks
        self._readers: dict[str, Reader] = {}

    def value(self, kind: str, key: Any) -> np.ndarray:
        found = getattr(self.manifest, kind)[key]
        with self._reading():
            if kind == RANKS:
                return np.concatenate([self._reader(entry).read(entry) for entry in found])
            return self._reader(found).read(found)

    def verify(self) -> None:
        """Checks every byte of all arrays."""
        with self._reading():
            for entry in self.manifest.entries():
                self._reader(entry).verify(entry)

    def _reader(self, entry: Entry) -> Reader:
        if entry.file not in self._readers:
            self._readers[entry.file] = reader = Reader(self._folder / entry.file)
            self.callback(reader.close)
        return self._readers[entry.file]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            raise _damaged(self._folder, str(error)) from error


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(
        f"checkpoint {folder} is damaged ({what}); name an earlier one, "
        "or give the folder above it to find the newest that is whole"
    )


def _digest(content: Any) -> str:
    return hex_digest(json.dumps(content, sort_keys=True))
