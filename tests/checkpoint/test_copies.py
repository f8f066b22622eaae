"""Copies of checkpoints in a folder and in a bucket."""

from __future__ import annotations

import re
from pathlib import Path

import fsspec
import keras
import pytest

from ooodist.checkpoint import archive
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.copies import Copies
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.checkpoint.parts import MANIFEST_NAME
from ooodist.errors import UserError
from ooodist.util.replacing import INCOMPLETE_PREFIX
from tests.checkpoint.examples import state_of, write_parts


@pytest.fixture(params=["folder", "bucket"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place, of both kinds."""
    if request.param == "folder":
        return str(tmp_path / "copies")
    return f"{request.getfixturevalue('bucket')}/runs/digits"


@pytest.fixture(scope="module")
def model() -> keras.Model:
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    made.compile("adam", "mse")
    made.optimizer.build(made.trainable_variables)
    return made


def write(folder: Path, model: keras.Model, epoch: int, *, in_parts: bool) -> Path:
    """Writes a checkpoint of one form or the other."""
    folder.mkdir(exist_ok=True)
    if in_parts:
        path = folder / folders.parts_name(epoch)
        write_parts(path, model, state=state_of(epoch))
    else:
        path = folder / folders.file_name(epoch)
        archive.write(path, ModelContent(model, state_of(epoch)))
    return path


def content(path: Path) -> dict[str, bytes]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("in_parts", [False, True])
def test_the_newest_comes_back_as_it_was(
    address: str, in_parts: bool, model: keras.Model, tmp_path: Path
) -> None:
    copies = Copies(address)
    copies.check_writable()
    assert copies.checkpoints() == []
    written = [write(tmp_path / "out", model, epoch, in_parts=in_parts) for epoch in (9, 10)]
    for path in (*written, written[1]):  # again: it is replaced
        copies.put(path)
    assert copies.checkpoints() == [
        ((epoch, 0), path.name) for epoch, path in zip((9, 10), written, strict=True)
    ]
    (tmp_path / "in").mkdir()
    path, state = Copies(address).fetch_newest(tmp_path / "in")
    assert (path, state.epoch) == (tmp_path / "in" / written[1].name, 10)
    assert content(path) == content(written[1])
    assert [each.name for each in (tmp_path / "in").iterdir()] == [path.name]


@pytest.mark.parametrize("in_parts", [False, True])
def test_of_what_is_damaged_an_earlier_one_is_taken(
    address: str,
    in_parts: bool,
    model: keras.Model,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    copies = Copies(address)
    for epoch in (1, 2, 3):
        copies.put(write(tmp_path / "out", model, epoch, in_parts=in_parts))
    files, root = fsspec.core.url_to_fs(address)
    third, second = (f"{root}/{name}" for _, name in reversed(copies.checkpoints()[1:]))
    if in_parts:
        files.rm_file(f"{third}/{MANIFEST_NAME}")  # a job was killed while it copied
        files.rm_file(f"{second}/part-0.npz")
    else:
        files.pipe_file(third, files.cat_file(third)[:-100])
        files.pipe_file(second, files.cat_file(second).replace(b"epoch", b"hcope"))
    (tmp_path / "in").mkdir()
    path, state = Copies(address).fetch_newest(tmp_path / "in")
    assert (path.name, state.epoch) == (copies.checkpoints()[0][1], 1)
    assert [each.name for each in (tmp_path / "in").iterdir()] == [path.name]
    assert caplog.text.count("looking for an earlier one") == 2


def test_none_that_is_whole(address: str, tmp_path: Path) -> None:
    copies = Copies(address, "checkpoint.resume")
    message = f"checkpoint.resume: there is no checkpoint in {address}; check the address"
    with pytest.raises(UserError, match=re.escape(message)):
        copies.fetch_newest(tmp_path)
    broken = tmp_path / folders.file_name(1)
    broken.write_text("no archive")
    copies.put(broken)
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match="there is no checkpoint that is whole in"):
        copies.fetch_newest(tmp_path / "in")
    assert not list((tmp_path / "in").iterdir())


def test_the_newest_are_kept(address: str, tmp_path: Path) -> None:
    copies = Copies(address)
    names = [folders.file_name(epoch) for epoch in (9, 2, 1_000_000, 999_999)]
    names += [folders.file_name(2, 7), "best.keras", "model.keras", f"{INCOMPLETE_PREFIX}left"]
    for name in names:
        (tmp_path / name).write_text(name)
        copies.put(tmp_path / name)
    for epoch in (3, 4):
        best = tmp_path / folders.best_parts_name(epoch)
        best.mkdir()
        (best / "part-0.npz").touch()
        (best / MANIFEST_NAME).touch()
        copies.put(best)
    for _ in range(2):
        copies.prune(2)
        assert [place for place, _ in copies.checkpoints()] == [(999_999, 0), (1_000_000, 0)]
        assert sorted(name for name, _ in copies.listing()) == [
            "best-epoch-000004",
            "best.keras",
            folders.file_name(1_000_000),
            folders.file_name(999_999),
            "model.keras",
        ]


def test_where_nothing_can_be_read_or_written(bucket: str, tmp_path: Path) -> None:
    nowhere = Copies("s3://no-such-bucket-here/runs")
    with pytest.raises(UserError, match=r"checkpoint.copy_to is s3://no-.*nothing can be written"):
        nowhere.check_writable()
    with pytest.raises(UserError, match=r"checkpoint.copy_to is s3://no-such.*cannot be read"):
        nowhere.checkpoints()
    file = tmp_path / "model.keras"
    file.touch()
    with pytest.raises(OSError, match="bucket"):
        nowhere.put(file)


def test_a_listing_leads_out_of_no_folder(tmp_path: Path, model: keras.Model) -> None:
    """A bucket may have any names; those of files of a checkpoint stay in its folder."""
    copies = Copies("memory://hostile")
    copies.put(write(tmp_path / "out", model, 1, in_parts=True))
    files, root = fsspec.core.url_to_fs("memory://hostile")
    files.pipe_file(f"{root}/{folders.parts_name(1)}/..", b"up")
    (tmp_path / "in").mkdir()
    path, _ = copies.fetch_newest(tmp_path / "in")
    assert sorted(content(path)) == [MANIFEST_NAME, "part-0.npz"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in", "out"]
