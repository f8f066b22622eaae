"""SHA-256 digests, which identify texts, arrays and files without storing them.

Digests of models are part of their names in a zoo, and those of jobs and plans are stored in files,
so the bytes that are hashed must never change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import IO


def digest(content: str | bytes | Iterable[bytes | memoryview]) -> bytes:
    """The 32-byte digest of a text (as UTF-8), of bytes, or of parts in sequence."""
    if isinstance(content, str):
        content = content.encode()
    whole = hashlib.sha256()
    for part in (content,) if isinstance(content, bytes) else content:
        whole.update(part)
    return whole.digest()


def hex_digest(content: str | bytes | Iterable[bytes | memoryview], digits: int = 64) -> str:
    """The first hexadecimal digits of a :func:`digest`."""
    return digest(content).hex()[:digits]


def file_digest(file: IO[bytes]) -> str:
    """The digest, in hexadecimal, of the rest of a file, which is read in pieces."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
