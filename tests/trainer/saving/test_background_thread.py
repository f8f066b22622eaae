"""A function that runs beside the training."""

from __future__ import annotations

import threading

import pytest

from ooodist.trainer.saving.background_thread import BackgroundThread


def test_it_runs_meanwhile_and_can_be_used_again() -> None:
    beside, may_end, done = BackgroundThread("test"), threading.Event(), []
    beside.settle(1)  # nothing is under way
    for number in range(2):
        may_end.clear()
        beside.start(lambda: may_end.wait(30), lambda number=number: done.append(number))
        beside.settle(0.01)
        assert len(done) == number  # it goes on
        may_end.set()
        beside.wait()
        assert len(done) == number + 1


def test_whoever_waits_gets_the_error_once() -> None:
    beside, ended = BackgroundThread("test"), []

    def fails() -> None:
        raise OSError("no space left")

    beside.start(fails, lambda: ended.append(True))
    with pytest.raises(OSError, match="no space left"):
        beside.wait()
    assert ended == [True]
    beside.start(lambda: None, lambda: None)
    beside.wait()
