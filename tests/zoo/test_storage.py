"""Folders and buckets: addresses, what killed writers leave, and what drivers report."""

from __future__ import annotations

import importlib.util
import io
import os
import time
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ooodist.errors import UserError
from ooodist.util.replacing import INCOMPLETE_PREFIX
from ooodist.zoo import zoo as module
from ooodist.zoo.storage import Storage
from ooodist.zoo.zoo import Wanted, Zoo
from tests.zoo.entries import Adder, ids, outline, sizes


def test_what_killed_writers_left_is_removed_after_an_hour(
    zoo: Zoo, add: Adder, tmp_path: Path
) -> None:
    old = tmp_path / "zoo" / f"{INCOMPLETE_PREFIX}old"
    new = tmp_path / "zoo" / f"{INCOMPLETE_PREFIX}new.keras"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (time.time() - 3700,) * 2)
    zoo.refresh()
    assert not old.exists()
    assert new.exists()
    assert zoo.list() == []


def test_a_bucket_is_used_as_a_folder_is(
    add: Adder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec's memory stands for a bucket: it has no folders, and no other index than ours."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    address = f"memory://{uuid.uuid4()}/zoo"
    with Zoo(address) as zoo:
        assert zoo.list() == []
        first = add(zoo, [4, 8], name="first")
        second = add(zoo, [4, 9], name="second")
        assert ids(zoo.query(outline([4, 9]), Wanted())) == [second]
        assert zoo.entry(first).meta.name == "first"
        assert zoo.fetch(first)[1]["layer1/kernel"].shape == (4, 8)
        zoo.evict(second)
    (index,) = (tmp_path / "home" / ".cache" / "ooodist" / "zoo").glob("*.sqlite")
    with Zoo(address) as again:
        assert [(row.id, row.uses) for row in again.list()] == [(first, 1)]
    with Zoo(address, index=tmp_path / "other.sqlite") as elsewhere:
        assert [(row.id, row.uses) for row in elsewhere.list()] == [(first, 0)]
    assert index.exists()


def test_another_machine_sees_in_a_bucket_what_this_one_did(
    add: Adder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LISTING_SECONDS", 0.0)
    address = f"memory://{uuid.uuid4()}"
    with (
        Zoo(address, index=tmp_path / "a.sqlite") as one,
        Zoo(address, index=tmp_path / "b.sqlite") as other,
    ):
        model = add(one, [4, 8])
        assert ids(other.query(outline([4, 8]), Wanted())) == [model]
        other.evict(model)
        assert one.query(outline([4, 8]), Wanted()) == []


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("unheard://of/it", "Protocol not known: unheard.*give a folder"),
        ("/proc/none/zoo", "zoo /proc/none/zoo cannot be used"),
    ],
)
def test_an_address_that_cannot_be_used_is_a_user_error(address: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Zoo(address)


def test_a_driver_that_is_not_installed_is_named() -> None:
    if importlib.util.find_spec("gcsfs"):
        pytest.skip("it is installed")
    with pytest.raises(UserError, match=r"gs://bucket/zoo needs a driver .*gcsfs"):
        Zoo("gs://bucket/zoo")


def test_a_relative_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Zoo("a/b") as zoo:
        assert zoo.list() == []
    assert (tmp_path / "a" / "b" / "index.sqlite").is_file()


class Remembering(MemoryFileSystem):
    """Keeps listings, as drivers of buckets do."""

    protocol = "remembering"

    def ls(self, path: str, detail: bool = True, **_: object) -> list[dict[str, object]]:
        if path in self.dircache:
            return list(self.dircache[path])
        found = super().ls(path, detail=True)
        self.dircache[path] = found
        return found

    def info(self, path: str, **_: object) -> dict[str, object]:
        kept = {each["name"]: each for each in self.ls(self._parent(path))}
        if path not in kept:
            raise FileNotFoundError(path)
        return kept[path]


class Broken(MemoryFileSystem):
    """Has errors of its own."""

    protocol = "broken"

    def fail(self, *_: object, **__: object) -> None:
        raise RuntimeError("the bucket is on fire")

    ls = put_file = mv = rm_file = modified = open = fail


fsspec.register_implementation("remembering", Remembering, clobber=True)
fsspec.register_implementation("broken", Broken, clobber=True)


def test_no_listing_is_kept(tmp_path: Path) -> None:
    """Or one thread would not find what another wrote since the last listing."""
    address = f"remembering://{uuid.uuid4()}"
    one, other = Storage(address), Storage(address)
    with one.incomplete(io.BytesIO(b"model")) as copy:
        assert sizes(other) == sizes(one) == {}
        one.complete(copy, "a")
    assert sizes(one) == sizes(other) == {"a": 5}
    with other.open("a") as file:
        assert file.read() == b"model"
    other.delete("a")
    assert sizes(one) == {}
    with pytest.raises(FileNotFoundError):
        one.open("a")


def test_errors_of_drivers_are_errors_of_the_system(tmp_path: Path) -> None:
    storage = Storage("broken://zoo")
    for call in (
        storage.states,
        lambda: storage.open("a"),
        lambda: storage.created("a"),
        lambda: storage.complete("a", "b"),
        lambda: storage.delete("a"),
        lambda: storage.incomplete(io.BytesIO(b"model")).__enter__(),
    ):
        with pytest.raises(OSError, match="RuntimeError: the bucket is on fire"):
            call()
    with pytest.raises(UserError, match=r"zoo broken://zoo cannot be read: .*on fire"):
        Zoo("broken://zoo", index=tmp_path / "index.sqlite")


@pytest.mark.parametrize("address", ["{folder}/zoo", "memory://{unique}/zoo"])
def test_what_is_not_completed_is_not_there(address: str, tmp_path: Path) -> None:
    storage = Storage(address.format(folder=tmp_path, unique=uuid.uuid4()))
    with pytest.raises(ZeroDivisionError), storage.incomplete(io.BytesIO(b"model")):
        raise ZeroDivisionError
    assert sizes(storage) == {}
    with storage.incomplete(io.BytesIO(b"model")) as copy:
        assert sizes(storage) == {}
        storage.complete(copy, "a")
    assert sizes(storage) == {"a": 5}
    assert abs(storage.created("a") - time.time()) < 60
    for _ in range(2):  # what is not there is deleted already
        storage.delete("a")
    assert sizes(storage) == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_the_index_of_a_folder_without_permission_is_elsewhere(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    (index,) = Storage(str(tmp_path)).index_files()
    assert tmp_path not in index.parents
