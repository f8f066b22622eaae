"""The watch calls when nothing moves, and only then."""

from __future__ import annotations

import threading
import time
from queue import Queue

import pytest

from ooodist.zoo.service import idle_timeout
from ooodist.zoo.service.idle_timeout import IdleTimeout


def test_it_calls_once_when_nothing_moves() -> None:
    called: Queue[int] = Queue()
    with IdleTimeout(0.05, lambda: called.put(1)) as watch:
        called.get(timeout=30)
        time.sleep(0.2)
    assert called.empty()
    assert watch.expired


def test_it_does_not_call_while_something_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own, which does not go on while this machine stands still."""
    now = 0.0
    monkeypatch.setattr(idle_timeout.time, "monotonic", lambda: now)
    called = threading.Event()
    with IdleTimeout(0.05, called.set) as watch:
        for _ in range(10):
            now += 0.04
            time.sleep(0.1)  # it looks
            watch.moved()
        assert not called.is_set()
        assert not watch.expired
        now += 0.06
        assert called.wait(30)
    assert watch.expired


def test_it_waits_longer_where_it_is_told_so() -> None:
    called = threading.Event()
    start = time.perf_counter()
    with IdleTimeout(0.1, called.set) as watch:
        watch.moved(0.5)
        assert called.wait(30)
    assert time.perf_counter() - start > 0.5


def test_it_leaves_no_thread() -> None:
    before = threading.active_count()
    for _ in range(10):
        with IdleTimeout(60.0, lambda: None):
            pass
    assert threading.active_count() == before


def test_it_may_be_ended_by_what_it_calls() -> None:
    ended = threading.Event()

    def end() -> None:
        watch.__exit__()
        ended.set()

    with IdleTimeout(0.05, end) as watch:
        assert ended.wait(30)
    assert watch.expired
