"""Checkpoints are copied beside the training."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.copies import Copies
from ooodist.errors import UserError
from ooodist.trainer.saving.copying import Copying


class Slow(Copies):
    """Copies when it is told to."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.begun, self.may_go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.put_there: list[str] = []
        self.error: OSError | None = None

    def put(self, path: Path) -> None:
        self.begun.release()
        assert self.may_go_on.acquire(timeout=30)
        if self.error is not None:
            raise self.error
        super().put(path)
        self.put_there.append(path.name)


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    return Slow(str(tmp_path / "copies"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def made(out: Path, *names: str) -> list[Path]:
    for name in names:
        (out / name).write_text(name)
    return [out / name for name in names]


def test_of_those_that_wait_the_newest_of_each_kind_is_copied(slow: Slow, out: Path) -> None:
    copying = Copying(slow, keep=3)
    names = [folders.file_name(epoch) for epoch in range(1, 5)]
    copying.begin(made(out, names[0]))
    assert slow.begun.acquire(timeout=30)  # while it is copied, others come
    copying.begin(made(out, names[1], "best.keras"))
    copying.begin(made(out, names[2]))
    copying.begin(made(out, names[3], "best.keras"))
    copying.begin(made(out, "model.keras"))
    copying.settle(0.01)  # no longer than that
    assert slow.put_there == []
    slow.may_go_on.release(9)
    copying.finish()
    assert slow.put_there == [names[0], names[3], "best.keras", "model.keras"]
    assert [name for _, name in slow.checkpoints()] == [names[0], names[3]]


def test_old_ones_are_deleted_there(slow: Slow, out: Path) -> None:
    slow.may_go_on.release(9)
    copying = Copying(slow, keep=2)
    for epoch in range(5):
        copying.begin(made(out, folders.file_name(epoch)))
        copying.finish()
    assert [epoch for (epoch, _), _ in slow.checkpoints()] == [3, 4]


def test_a_copy_that_fails_is_logged_and_the_next_one_counts(
    slow: Slow, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow.may_go_on.release(9)
    slow.error = OSError("the network is gone")
    copying = Copying(slow, keep=2)
    first, second = made(out, folders.file_name(1), folders.file_name(2))
    copying.begin([first])
    copying.settle()
    assert f"{first} was not copied to {slow.address}: the network is gone" in caplog.text
    with pytest.raises(UserError, match=r"copy_to is .*000001.keras: the network is gone"):
        copying.finish()
    slow.error = None
    copying.begin([second])
    copying.finish()
    assert [name for _, name in slow.checkpoints()] == [second.name]


def test_what_is_deleted_before_its_turn_is_not_missed(
    slow: Slow, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ooodist")
    copying = Copying(slow, keep=2)
    (path,) = made(out, folders.file_name(1))
    copying.begin([path])
    assert slow.begun.acquire(timeout=30)
    path.unlink()
    slow.may_go_on.release()
    copying.finish()
    assert "was replaced by a newer one before it was copied" in caplog.text
