"""The checkpoints of an output folder: which is the newest, which go, and how they get there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.checkpoint import folder as folders
from ooodist.errors import UserError
from ooodist.util.replacing import INCOMPLETE_PREFIX
from tests.thorough import few


def make(path: Path, content: str = "x") -> Path:
    """Makes what looks like a checkpoint by its name: a file or a folder."""
    if path.suffix == ".keras":
        path.write_text(content)
    else:
        path.mkdir()
        (path / "part-0.npz").write_text(content)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@few(25)
@given(
    kinds=st.dictionaries(st.integers(0, 3_000_000), st.booleans(), max_size=8),
    keep=st.integers(1, 5),
)
def test_the_newest_are_kept(
    tmp_path_factory: pytest.TempPathFactory, kinds: dict[int, bool], keep: int
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    for epoch, in_parts in kinds.items():
        make(folder / (folders.parts_name(epoch) if in_parts else folders.file_name(epoch)))
    (folder / f"{INCOMPLETE_PREFIX}a").mkdir()
    (folder / f"{INCOMPLETE_PREFIX}a" / "part-0.npz").touch()
    (folder / f"{INCOMPLETE_PREFIX}b.keras").touch()
    make(folder / "best.keras")
    make(folder / folders.best_parts_name(2))
    (folder / "config.yaml").touch()
    assert [epoch for (epoch, _), _ in folders.checkpoints(folder)] == sorted(kinds)
    folders.prune(folder, keep)
    assert [epoch for (epoch, _), _ in folders.checkpoints(folder)] == sorted(kinds)[-keep:]
    others = {"best.keras", "best-epoch-000002", "config.yaml"}
    assert {name for name in names(folder) if not name.startswith("checkpoint")} == others


def test_what_is_a_checkpoint_and_what_holds_them(tmp_path: Path) -> None:
    assert folders.is_checkpoint(make(tmp_path / folders.parts_name(1)))  # damaged, but one
    assert folders.is_checkpoint(make(tmp_path / folders.best_parts_name(1)))
    assert folders.is_checkpoint(make(tmp_path / "a.keras"))
    assert not folders.is_checkpoint(tmp_path)
    (tmp_path / "manifest.json").touch()
    assert folders.is_checkpoint(tmp_path)


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("checkpoint-epoch-000001.keras.old", "my-checkpoint-epoch-1", "checkpoint-epoch-"):
        (tmp_path / name).touch()
    assert folders.checkpoints(tmp_path) == []
    folders.prune(tmp_path, 1)
    assert len(names(tmp_path)) == 3
    assert folders.checkpoints(tmp_path / "nowhere") == []
    folders.prune(tmp_path / "nowhere", 1)  # deleted meanwhile


def test_the_best_one(tmp_path: Path) -> None:
    assert folders.best_in(tmp_path) is None
    old = make(tmp_path / "best.keras")
    os.utime(old, (1, 1))
    assert folders.best_in(tmp_path) == old
    made = [make(tmp_path / folders.best_parts_name(epoch)) for epoch in (2, 4)]
    assert folders.best_in(tmp_path) == made[-1]
    folders.prune_best(tmp_path, made[-1])
    assert names(tmp_path) == ["best-epoch-000004", "best.keras"]


def test_a_folder_is_there_once_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with folders.making(target) as temporary:
        (temporary / "x").write_text("new")
        assert not target.exists()
        assert temporary.name.startswith(INCOMPLETE_PREFIX)
    assert (target / "x").read_text() == "new"
    assert names(tmp_path) == ["a"]


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    target = make(tmp_path / "a", "old")
    with folders.making(target) as temporary:
        (temporary / "part-0.npz").write_text("new")
        assert (target / "part-0.npz").read_text() == "old"
    assert (target / "part-0.npz").read_text() == "new"
    assert names(tmp_path) == ["a"]


def test_what_fails_leaves_the_one_before(tmp_path: Path) -> None:
    target = make(tmp_path / "a", "old")

    def write_half() -> None:
        with folders.making(target) as temporary:
            (temporary / "part-0.npz").write_text("half")
            raise OSError("the disk is full")

    with pytest.raises(UserError, match=rf"checkpoint {target} cannot be written: .*full"):
        write_half()
    assert (target / "part-0.npz").read_text() == "old"
    assert names(tmp_path) == ["a"]
    with (
        pytest.raises(UserError, match="cannot be written: "),
        folders.making(tmp_path / "nowhere" / "a"),
    ):
        pass


def test_a_link_costs_no_space_and_outlives_its_source(tmp_path: Path) -> None:
    source = make(tmp_path / folders.parts_name(3), "values")
    target = tmp_path / folders.best_parts_name(3)
    folders.duplicate(source, target)
    assert (target / "part-0.npz").stat().st_ino == (source / "part-0.npz").stat().st_ino
    folders.delete(source)
    assert (target / "part-0.npz").read_text() == "values"


def test_where_links_do_not_work_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links on this file system")

    monkeypatch.setattr(os, "link", refuse)
    source = make(tmp_path / folders.parts_name(3), "values")
    folders.duplicate(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "part-0.npz").read_text() == "values"
    assert (tmp_path / "copy" / "part-0.npz").stat().st_nlink == 1
