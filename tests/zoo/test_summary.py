"""The summary beside the models: with it, a zoo is opened without opening its files."""

from __future__ import annotations

import gzip
import json
import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Outline
from ooodist.zoo import entry as entries
from ooodist.zoo import summary
from ooodist.zoo.entry import Meta
from ooodist.zoo.storage import SUMMARY_NAME
from ooodist.zoo.zoo import Wanted, Zoo
from tests.zoo.entries import Adder, chain, ids, outline, write_plain

MODELS = summary.LEAST_NEW


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models whose files are read."""
    names: list[str] = []
    read = entries.read_for_index

    def reading(source: Any) -> tuple[Meta, Outline]:
        names.append(Path(source.path if hasattr(source, "path") else source.name).stem)
        return read(source)

    monkeypatch.setattr(entries, "read_for_index", reading)
    return names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A zoo of as many models as are worth a summary, made by hand."""
    made = tmp_path / "zoo"
    made.mkdir()
    for number in range(MODELS):
        meta = Meta(f"m{number}", "tu"[number % 2], "d", ("a",), ("bob",), {"accuracy": 0.5})
        write_plain(made / f"m{number:02}.keras", chain([4, number + 1]), meta)
    return made


def index(tmp_path: Path) -> Path:
    """Of one who opens the zoo for the first time."""
    return tmp_path / f"{uuid.uuid4()}.sqlite"


def test_the_first_reads_the_files_and_all_others_the_summary(
    folder: Path, tmp_path: Path, opened: list[str]
) -> None:
    with Zoo(folder, index=index(tmp_path)) as first:
        rows = first.list()
        assert len(opened) == MODELS
        first.fetch("m03")
    opened.clear()
    with Zoo(folder, index=index(tmp_path)) as other:
        assert other.list() == rows  # without the use
        assert ids(other.query(outline([4, 8]), Wanted())) == ["m07"]
        assert opened == []


def test_what_is_newer_than_the_summary_is_read(
    folder: Path, tmp_path: Path, opened: list[str]
) -> None:
    Zoo(folder, index=index(tmp_path)).close()
    opened.clear()
    size = (folder / "m00.keras").stat().st_size
    write_plain(
        folder / "m00.keras",
        chain([4, 1]),
        Meta("n0", "t", "e", ("a",), ("bob",), {"accuracy": 0.5}),
    )
    assert (folder / "m00.keras").stat().st_size == size  # it is the time that tells
    (folder / "m01.keras").unlink()
    write_plain(folder / "m99.keras", chain([4, 99]))
    with Zoo(folder, index=index(tmp_path)) as zoo:
        assert sorted(opened) == ["m00", "m99"]
        models = {row.id: row.meta.name for row in zoo.list()}
        assert len(models) == MODELS
        assert models["m00"] == "n0"
        assert "m01" not in models


def test_a_file_of_the_same_size_is_seen_by_who_has_an_index(folder: Path, tmp_path: Path) -> None:
    with Zoo(folder, index=index(tmp_path)) as zoo:
        write_plain(
            folder / "m02.keras",
            chain([4, 3]),
            Meta("n2", "t", "d", ("a",), ("bob",), {"accuracy": 0.5}),
        )
        assert {row.meta.name for row in zoo.list()} >= {"n2", "m3"}


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_those_that_are_added_come_into_it(
    place: str, add: Adder, tmp_path: Path, opened: list[str]
) -> None:
    address = str(tmp_path / "zoo") if place == "folder" else f"memory://{uuid.uuid4()}/zoo"
    files = fsspec.core.url_to_fs(address)[0]
    with Zoo(address, index=index(tmp_path)) as zoo:
        for number in range(MODELS - 1):
            add(zoo, [4, number + 1])
        assert not files.exists(f"{address}/{SUMMARY_NAME}")
        add(zoo, [5, 1])
        assert files.exists(f"{address}/{SUMMARY_NAME}")
        add(zoo, [5, 2])
        rows = [replace(row, created=0, last_used=0) for row in zoo.list()]
    assert opened == []
    with Zoo(address, index=index(tmp_path)) as other:
        assert [replace(row, created=0, last_used=0) for row in other.list()] == rows
        assert len(opened) == 1


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """Changes what is said of the first model."""

    def changing(content: bytes) -> bytes:
        head, first, *others = gzip.decompress(content).splitlines()
        said = json.loads(first)
        change(said)
        return gzip.compress(b"\n".join([head, json.dumps(said).encode(), *others]))

    return changing


WRONG_LINES = [
    lambda said: said.clear(),
    lambda said: said.update(outline=[]),
    lambda said: said.update(outline=[["Dense", [7], []]]),
    lambda said: said.update(outline=[["Dense", [], [[9]]]]),  # has other parameters
    lambda said: said.update(version="of another time"),
    lambda said: said.update(version=[]),
    lambda said: said.update(row=3),
    lambda said: said["row"].update(bytes=True),
    lambda said: said["row"].update(id="../evil"),
    lambda said: said["row"].update(created="long ago"),
    lambda said: said["row"]["meta"].update(metrics={"accuracy": 7}),
    lambda said: said["row"]["meta"].update(name="\x1b[2J"),
    lambda said: said["row"]["meta"].pop("access") and said["row"]["meta"].update(acces=[]),
]


@pytest.mark.parametrize("change", WRONG_LINES)
def test_a_line_that_is_wrong_does_not_count(
    change: Callable[[dict[str, Any]], object], folder: Path, tmp_path: Path, opened: list[str]
) -> None:
    with Zoo(folder, index=index(tmp_path)) as zoo:
        rows = zoo.list()
    file = folder / SUMMARY_NAME
    file.write_bytes(changed(change)(file.read_bytes()))
    opened.clear()
    with Zoo(folder, index=index(tmp_path)) as zoo:
        assert zoo.list() == rows
    assert opened == ["m00"]


def test_uses_of_others_do_not_count(folder: Path, tmp_path: Path, opened: list[str]) -> None:
    with Zoo(folder, index=index(tmp_path)) as zoo:
        rows = zoo.list()
    file = folder / SUMMARY_NAME
    used = changed(lambda said: said["row"].update(uses=9, value=9.0, last_used=9e9))
    file.write_bytes(used(file.read_bytes()))
    opened.clear()
    with Zoo(folder, index=index(tmp_path)) as zoo:
        assert zoo.list() == rows
    assert not opened


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b""),
        gzip.compress(b"[]\n"),
        gzip.compress(b'{"version": 1}\n'),
        gzip.compress(b'{"version": 3, "more": 0}\n'),
        gzip.compress(b'{"version": 3}\n' + os.urandom(1000))[:500],
        gzip.compress(b"[" * 100_000),
    ],
    ids=range(8),  # the bytes have the time in them
)
def test_what_is_no_summary_is_logged_and_made_anew(
    content: bytes, folder: Path, tmp_path: Path, opened: list[str], caplog: Any
) -> None:
    (folder / SUMMARY_NAME).write_bytes(content)
    for reads in (MODELS, 0):
        opened.clear()
        with caplog.at_level(logging.WARNING, "ooodist"), Zoo(folder, index=index(tmp_path)) as zoo:
            assert len(zoo.list()) == len(zoo.query(outline([4, 2]), Wanted(), MODELS)) == MODELS
        assert len(opened) == reads
    assert caplog.text.count(f"the summary of zoo {folder} is not used: ") == 1


def test_a_summary_of_another_version_says_so() -> None:
    with pytest.raises(UserError, match=r"it begins with .*'clustered': 5"):
        summary.read(gzip.compress(b'{"version": 1, "clustered": 5}\n'), {})


def test_a_bomb_is_not_unpacked() -> None:
    head = b'{"version": 3}\n'
    bomb = gzip.compress(head + b" " * (2 * summary.MOST_LINE_BYTES) + b"\n")
    assert summary.read(bomb, {}) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "MOST_BYTES", summary.MOST_LINE_BYTES)
        with pytest.raises(UserError, match="it has more than 4194304 bytes"):
            summary.read(bomb, {})
