"""Arrays in an uncompressed zip archive, one ``.npy`` member each, as ``numpy.load`` reads them.

They are written and read one at a time and in pieces, so an archive may be far larger than memory.
Each array has a SHA-256 digest, by which it is checked alone. Dtypes that NumPy does not know, such
as bfloat16, are plain bytes in the member; an array's :class:`Entry` has the dtype.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from ooodist.errors import UserError
from ooodist.util.replacing import flush_to_disk

SUFFIX = ".npy"
# RuntimeError: of zipfile, for what is encrypted or compressed in a way that it does not know.
DAMAGED = (
    *(OSError, zipfile.BadZipFile, zlib.error),
    *(EOFError, ValueError, KeyError, RuntimeError),
)
"""What reading a damaged archive may raise."""
_PIECE = 1 << 20  # bytes that are hashed and written at a time
_READ_HEADER = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class Entry:
    """An array in an archive."""

    file: str  # the archive's name in its folder
    member: str
    shape: tuple[int, ...]
    dtype: str
    digest: str  # of its values, in C order, as hexadecimal SHA-256


def dtype_of(name: str) -> np.dtype:
    """The dtype of this name, as ``float32`` or ``bfloat16``. Raises TypeError."""
    return np.dtype(getattr(ml_dtypes, name, name))


class Writer(ExitStack):
    """Writes arrays to a new archive, which is on disk when the block ends."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self.callback(flush_to_disk, file)  # once the archive is closed
        self._archive = self.enter_context(zipfile.ZipFile(file, "w", zipfile.ZIP_STORED))
        self._members: set[str] = set()

    def write(self, name: str, array: np.ndarray) -> Entry:
        """Appends an array under this name; if it is taken, with a number, as ``bias#2``."""
        member, whole = self._member(name), hashlib.sha256()
        is_numpys_own = array.dtype.isbuiltin == 1
        header = {
            "descr": array.dtype.str if is_numpys_own else f"|V{array.dtype.itemsize}",
            "fortran_order": False,
            "shape": array.shape,
        }
        # Without the time, so that equal arrays make equal files.
        with self._archive.open(zipfile.ZipInfo(member), "w", force_zip64=True) as file:
            npy.write_array_header_1_0(file, header)
            for piece in _pieces(as_bytes(array)):
                whole.update(piece)
                file.write(piece)
        shape = tuple(int(size) for size in array.shape)
        return Entry(self._file.name, member, shape, str(array.dtype), whole.hexdigest())

    def _member(self, name: str) -> str:
        member, number = name + SUFFIX, 1
        while member in self._members:
            number += 1
            member = f"{name}#{number}{SUFFIX}"
        self._members.add(member)
        return member


class Reader:
    """Reads arrays from an archive; each is checked as it is read."""

    def __init__(self, file: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(file)
        except DAMAGED as error:
            raise UserError(f"{file} is damaged ({error})") from error
        self._file = file

    def close(self) -> None:
        self._archive.close()

    def read(self, entry: Entry) -> np.ndarray:
        """An array. Raises UserError if it is not the one that was written."""
        array = np.empty(entry.shape, dtype_of(entry.dtype))
        self._read_into(entry, as_bytes(array))
        return array

    def verify(self, entry: Entry) -> None:
        """Reads an array without keeping it. Raises UserError as :meth:`read` does."""
        self._read_into(entry, None)

    def _read_into(self, entry: Entry, content: memoryview | None) -> None:
        """Reads the bytes of an array into memory, or nowhere, and compares their digest."""
        size = int(np.prod(entry.shape, dtype=np.int64)) * dtype_of(entry.dtype).itemsize
        pieces = _pieces(content) if content is not None else _buffers(size)
        whole = hashlib.sha256()
        try:
            with self._archive.open(entry.member) as member:
                _skip_header(member)
                for piece in pieces:
                    if member.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                        raise EOFError("it ends too early")
                    whole.update(piece)
                if member.read(1):
                    raise ValueError("it is longer than it was")
        except DAMAGED as error:
            raise UserError(f"{self._file} is damaged ({entry.member}: {error})") from error
        if whole.hexdigest() != entry.digest:
            raise UserError(
                f"{self._file} is damaged ({entry.member} has other values than were written)"
            )


def _skip_header(member: IO[bytes]) -> None:
    _READ_HEADER[npy.read_magic(member)](member)


def as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array in C order; of a contiguous one without a copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _pieces(content: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]


def _buffers(size: int) -> Iterator[memoryview]:
    """Yields one buffer again and again, for so many bytes in all."""
    buffer = memoryview(bytearray(min(size, _PIECE)))
    for start in range(0, size, _PIECE):
        yield buffer[: size - start]
