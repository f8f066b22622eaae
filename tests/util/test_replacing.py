"""A file is the old one or the new one, whatever happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.util.replacing import INCOMPLETE_PREFIX, replacing

KILLED = """
import os, signal, sys
from pathlib import Path
from ooodist.util.replacing import replacing

with replacing(Path(sys.argv[1]), "file") as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_the_new_one_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "model.keras"
    file.write_text("old")
    with replacing(file, "model") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(INCOMPLETE_PREFIX)
        assert temporary.suffix == ".keras"
        temporary.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert names(tmp_path) == ["model.keras"]


def test_an_error_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "model.keras"
    file.write_text("old")

    def fail() -> None:
        with replacing(file, "model") as temporary:
            temporary.write_text("half")
            raise KeyError("what was being written")

    with pytest.raises(KeyError):
        fail()
    assert file.read_text() == "old"
    assert names(tmp_path) == ["model.keras"]


def test_the_first_of_several_writers_wins_where_it_may_only_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "vocabulary"
    with (
        replacing(file, only_if_missing=True) as late,
        replacing(file, only_if_missing=True) as first,
    ):
        first.write_text("first")
        late.write_text("late")
    assert file.read_text() == "first"
    assert names(tmp_path) == ["vocabulary"]


def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    file = tmp_path / "plan"
    with replacing(file, "plan") as one, replacing(file, "plan") as other:
        one.write_text("one")
        other.write_text("other")
    assert file.read_text() == "one"  # which was complete last
    assert names(tmp_path) == ["plan"]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "none" / "model.keras"
    with (
        pytest.raises(UserError, match=rf"^checkpoint {file} cannot be written: "),
        replacing(file, "checkpoint") as temporary,
    ):
        temporary.write_text("x")


def test_an_error_of_the_system_stays_one_where_nobody_says_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "none" / "plan.yaml"
    with pytest.raises(FileNotFoundError), replacing(file) as temporary:
        temporary.write_text("x")


def test_a_killed_writer_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "model.keras"
    file.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert done.returncode == -9
    assert file.read_text() == "old"
    left = [name for name in names(tmp_path) if name != "model.keras"]
    assert len(left) == 1
    assert left[0].startswith(INCOMPLETE_PREFIX)
