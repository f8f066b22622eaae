"""Folders and buckets by address."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.util.addresses import Store, os_errors


def test_a_folder_is_made(tmp_path: Path) -> None:
    store = Store(f"{tmp_path}/a/b/", "copies")
    assert store.is_local
    assert Path(store.root) == tmp_path / "a" / "b"
    assert Path(store.root).is_dir()


def test_a_folder_is_not_made_for_reading(tmp_path: Path) -> None:
    for place in (f"{tmp_path}/none", f"file://{tmp_path}/none"):
        with pytest.raises(UserError, match=f"there is no zoo {place}; check the path, or make"):
            Store(place, "zoo", create=False)
    assert not (tmp_path / "none").exists()
    assert Store(str(tmp_path), "zoo", create=False).root == str(tmp_path)


def test_memory_is_no_folder() -> None:
    store = Store("memory://place", "copies")
    assert not store.is_local
    assert store.root == "/place"


def test_an_address_that_nobody_knows() -> None:
    with pytest.raises(UserError, match=r"copies nowhere://a cannot be used: .*s3://bucket/folder"):
        Store("nowhere://a", "copies")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"copies .*file/place cannot be used"):
        Store(f"{tmp_path}/file/place", "copies")


def test_errors_of_any_driver_are_errors_of_the_system() -> None:
    with pytest.raises(OSError, match="ZeroDivisionError: by zero"), os_errors():
        raise ZeroDivisionError("by zero")
    missing = FileNotFoundError("gone")
    with pytest.raises(FileNotFoundError) as caught, os_errors():
        raise missing
    assert caught.value is missing
