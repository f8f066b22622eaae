"""Opens model files that anyone may have written: members have known names and bounded sizes."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ooodist.checkpoint.archive import (
    ASSETS_FOLDER,
    CONFIG_MEMBER,
    METADATA_MEMBER,
    WEIGHTS_MEMBER,
)
from ooodist.errors import UserError
from ooodist.zoo.full_disk import is_disk_full
from ooodist.zoo.reading import bounded_json

MEMBER = "ooodist-zoo.json"
GRAPH_MEMBER = "ooodist-graph.json"  # which files of earlier versions lack
REQUIRED_MEMBERS = (METADATA_MEMBER, CONFIG_MEMBER, WEIGHTS_MEMBER, MEMBER)
MEMBERS = (*REQUIRED_MEMBERS, GRAPH_MEMBER)
ASSET_ENDINGS = (".txt", ".json", ".spm")  # vocabularies of text layers

MOST_JSON_BYTES = 64 * 2**20
MOST_UNPACKED_BYTES = 256 * 2**20  # by which the unpacked members may exceed the file


@contextlib.contextmanager
def opened(source: Path | BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Opens an archive and checks its members; errors raised while it is open name the file."""
    name = str(source if isinstance(source, Path) else _name_of(source))
    if isinstance(source, Path) and not source.is_file():
        raise UserError(f"there is no model file {source}; check the path")
    try:
        with zipfile.ZipFile(source) as archive:
            _check_members(archive)
            yield archive
    except UserError as error:
        raise UserError(f"model file {name}: {error}") from error
    except Exception as error:  # zipfile, zlib, json and h5py raise many types
        if is_disk_full(error):  # this machine's, while unpacking; the file is fine
            raise UserError(f"model file {name} cannot be unpacked: {error}") from error
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"model file {name} cannot be read or is damaged: {reason}") from error


def read_json(archive: zipfile.ZipFile, member: str) -> Any:
    """The value of a member. Raises UserError if it is missing or too large."""
    if member not in archive.namelist():
        raise UserError(f"it has no member {member}")
    info = archive.getinfo(member)
    most = min(MOST_JSON_BYTES, bounded_json.most_bytes(info.compress_size))
    if info.file_size > most:
        packed = f", packed into {info.compress_size}" if most < MOST_JSON_BYTES else ""
        raise UserError(f"{member} has {info.file_size} bytes{packed}; it may have {most}")
    with archive.open(info) as stream:  # read() without a size would unpack more than is declared
        return bounded_json.loads(stream.read(info.file_size), member)


def _name_of(file: BinaryIO) -> object:
    """The name of an open file for errors: the path of fsspec's files, or the file name.

    The name of a temporary file is a number: such files came over the network.
    """
    name = getattr(file, "path", None) or getattr(file, "name", None)
    return name if isinstance(name, str) else "that was sent"


def _check_members(archive: zipfile.ZipFile) -> None:
    members = archive.infolist()
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise UserError("it has several members of the same name")
    for name in names:
        if name.startswith("/") or ".." in name.split("/") or "\\" in name:
            raise UserError(f"its member {name[:200]!r} has a name that leads out of it")
        asset = name.startswith(ASSETS_FOLDER) and name.endswith((*ASSET_ENDINGS, "/"))
        if name not in MEMBERS and not asset:
            raise UserError(
                f"its member {name[:200]!r} is no part of a model; there may be "
                f"{', '.join(MEMBERS)} and, in {ASSETS_FOLDER}, {', '.join(ASSET_ENDINGS)}"
            )
    for name in REQUIRED_MEMBERS:
        if name not in names:
            hint = "; add it with python -m ooodist.zoo add" if name == MEMBER else ""
            raise UserError(f"it has no member {name}{hint}")
    assert archive.fp is not None
    size = archive.fp.seek(0, os.SEEK_END)
    unpacked = sum(member.file_size for member in members)
    if unpacked > size + MOST_UNPACKED_BYTES:
        raise UserError(f"its members have {unpacked} bytes, far more than the file, {size}")
