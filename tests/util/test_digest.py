"""Digests that are in files must never change."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ooodist.util.digest import digest, file_digest, hex_digest

# SHA-256 of "abc", from the standard (FIPS 180-4).
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("content", ["abc", b"abc", [b"a", b"bc"], (b"abc",), iter([b"abc", b""])])
def test_the_digest_of_text_bytes_and_parts(content: str | bytes) -> None:
    assert digest(content).hex() == ABC


def test_the_first_digits() -> None:
    assert hex_digest("abc") == ABC
    assert hex_digest(b"abc", 16) == ABC[:16]


def test_text_is_hashed_as_utf_8() -> None:
    assert digest("größer") == digest("größer".encode())


def test_nothing_has_a_digest_too() -> None:
    assert digest("") == digest(b"") == digest([])


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    with file.open("rb") as opened:
        assert file_digest(opened) == ABC
    assert file_digest(io.BytesIO(b"x" * 2**20)) == hex_digest(b"x" * 2**20)
