"""SHA-256 digests, by which texts, arrays and files are told apart without keeping them.

Digests of models are part of their names in a zoo, those of jobs and plans are in files: what is
hashed must stay the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import IO


def digest(content: str | bytes | Iterable[bytes]) -> bytes:
    """The 32 bytes of the digest of a text (as UTF-8), of bytes, or of parts one after another."""
    if isinstance(content, str):
        content = content.encode()
    whole = hashlib.sha256()
    for part in (content,) if isinstance(content, bytes) else content:
        whole.update(part)
    return whole.digest()


def hex_digest(content: str | bytes | Iterable[bytes], digits: int = 64) -> str:
    """The first hexadecimal digits of a :func:`digest`."""
    return digest(content).hex()[:digits]


def file_digest(file: IO[bytes]) -> str:
    """All hexadecimal digits of the digest of what is left to read in a file, read in pieces."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
