"""A zoo on a disk that is full: it is still read, and says what it cannot do."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ooodist.errors import UserError
from ooodist.zoo import summary
from ooodist.zoo.entry import Meta
from ooodist.zoo.service.server import serve
from ooodist.zoo.zoo import Wanted, Zoo
from tests.zoo.entries import Adder, chain, ids, models_in, outline, write_plain
from tests.zoo.serving import TOKENS, call, listed, naming, refused, upload


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """One of a MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> None:
    free = os.statvfs(disk)
    (disk / "fill").write_bytes(bytes(free.f_bavail * free.f_frsize))


def test_it_is_read_and_nothing_is_lost(
    disk: Path, add: Adder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Zoo(disk / "zoo") as zoo:
        model = add(zoo, [4, 8])
        fill(disk)
        for _ in range(2):
            assert set(zoo.fetch(model)[1]) == {"layer1/kernel", "layer1/bias"}
            assert ids(zoo.query(outline([4, 8]), Wanted())) == [model]
        assert caplog.text.count("uses of models are not counted: database or disk is full") == 1
        with pytest.raises(UserError, match=r"cannot be written to zoo .*No space left"):
            add(zoo, [300, 300])
        assert models_in(disk / "zoo") == {f"{model}.keras"}
        assert [row.id for row in zoo.list()] == [model]
        zoo.evict(model)
        assert zoo.list() == []


def test_it_is_opened_with_an_index_on_another_disk(
    disk: Path,
    add: Adder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with Zoo(disk / "zoo") as zoo:
        model = add(zoo, [4, 8])
    fill(disk)
    with caplog.at_level(logging.WARNING, "ooodist"), Zoo(disk / "zoo") as zoo:
        assert ids(zoo.query(outline([4, 8]), Wanted())) == [model]
        assert set(zoo.fetch(model)[1]) == {"layer1/kernel", "layer1/bias"}
    assert f"the index {disk}/zoo/index.sqlite of the zoo cannot be used" in caplog.text
    assert f"another one is used meanwhile: {tmp_path}/home" in caplog.text


def test_without_room_in_the_index_what_is_new_is_not_seen_and_that_is_said(
    disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Zoo(tmp_path / "zoo", index=disk / "index.sqlite") as zoo:
        write_plain(tmp_path / "zoo" / "old.keras", chain([4, 8]))
        assert [row.id for row in zoo.list()] == ["old"]
        fill(disk)
        for number in range(40):
            write_plain(tmp_path / "zoo" / f"new{number}.keras", chain([4] * 20 + [number + 1]))
        assert ids(zoo.query(outline([4, 8]), Wanted())) == ["old"]
        assert "what is new in it is not seen, as its index cannot be written" in caplog.text
        (disk / "fill").unlink()
        assert len(zoo.list()) == 41


def test_without_room_for_a_summary_it_is_used_and_that_is_said(
    disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (disk / "zoo").mkdir()
    for number in range(summary.LEAST_NEW):
        write_plain(disk / "zoo" / f"m{number}.keras", chain([4, number + 1]))
    fill(disk)
    with Zoo(disk / "zoo", index=tmp_path / "index.sqlite") as zoo:
        assert len(zoo.list()) == summary.LEAST_NEW
    assert f"no summary of zoo {disk}/zoo can be written" in caplog.text


@pytest.mark.parametrize("place", ["zoo", "temporary files"])
def test_a_service_goes_on_to_answer(
    place: str, disk: Path, add: Adder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it cannot take is no fault of what was sent."""
    new = add.file([300, 300], Meta("new")).read_bytes()
    monkeypatch.setattr(tempfile, "tempdir", str(disk if place != "zoo" else tmp_path))
    folder = disk if place == "zoo" else tmp_path
    with Zoo(folder / "zoo") as zoo:
        model = add(zoo, [4, 8])
        fill(disk)
        with serve(zoo, "127.0.0.1:0", tokens=TOKENS) as service:
            code, details = refused(service, "Register", upload(new))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details == "the service's disk is full"
            assert set(listed(service)) == {model}
            _, content, _ = call(service, "Fetch", naming(model))
            with zoo.open(model) as file:
                assert content.chunk == file.read()
